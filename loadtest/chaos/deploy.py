"""The deployment under test: its settings, its small disk, a clock for each process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from loadtest.chaos.cluster import Cluster, ClusterOptions
from loadtest.chaos.faults import Equipment, Faults
from loadtest.chaos.wrong_clock import WrongClock
from loadtest.errors import LoadTestError

MESSAGE_BYTES = 2_000
"""Of one message in the log on average, headers included."""
KEPT_S = 120
"""Seconds of messages that retention keeps: longer than any step."""
LEAST_KEPT_BYTES = 64 << 20
SPARE_BYTES = 192 << 20


class Deployment(NamedTuple):
    gateways: int
    has_redis: bool
    flush: str
    rate: int

    def __str__(self) -> str:
        parts = f"a store and {self.gateways} gateways" if self.gateways else "one process"
        return f"{parts}{' with Redis' if self.has_redis else ''}, flush {self.flush}"

    @property
    def kept_bytes(self) -> int:
        return max(LEAST_KEPT_BYTES, self.rate * MESSAGE_BYTES * KEPT_S)

    @property
    def disk_bytes(self) -> int:
        return 2 * self.kept_bytes + SPARE_BYTES

    @property
    def settings(self) -> dict[str, object]:
        """Settings that make everything happen often: segments fill and are dropped, the index is written and
        flushed.
        """
        return {
            "store.flush": self.flush,
            "store.segment_bytes": 4 << 20,
            "store.retention_bytes": self.kept_bytes,
            "store.retention_check_s": 2,
            "store.index_write_buffer_bytes": 1 << 20,
            "gateway.maximum_packet_size_bytes": 65_536,
        }


@asynccontextmanager
async def deployed(what: Deployment, folder: Path, equipment: Equipment) -> AsyncIterator[tuple[Cluster, Faults]]:
    """Start a deployment. Raises LoadTestError. It starts in a thread, so that an interrupt leaves no process
    behind.
    """
    clocks: dict[str, WrongClock] = {}

    def environment_of(name: str) -> dict[str, str]:
        if equipment.clock is None:
            return {}
        clocks[name] = equipment.clock.another(name)
        return clocks[name].environment

    def start() -> Cluster:
        return Cluster(
            folder,
            what.gateways,
            what.settings,
            options=ClusterOptions(
                with_redis=what.has_redis, data=equipment.disk.folder / "data", environment_of=environment_of
            ),
        )

    starting = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        cluster = await asyncio.shield(starting)
    except RuntimeError as error:
        raise LoadTestError(f"the deployment does not start: {error}") from None
    except asyncio.CancelledError:
        with suppress(RuntimeError):
            (await starting).close()
        raise
    try:
        yield cluster, Faults(cluster, equipment, clocks)
    finally:
        cluster.close()
