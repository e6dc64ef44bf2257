"""The server at a glance: figures of its process, rates between two looks, and what is wrong with the remedy."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import NamedTuple

from penstock.console.store.operator import OperatorConnection
from penstock.console.views.figures import Figures as Figures
from penstock.console.views.figures import Trouble as Trouble
from penstock.console.views.rates import Rates
from penstock.console.views.watch import Watch

KEPT_LOOKS = 900
FRESH_S = 1.0
RECEIVED, SENT, STORED = (
    "penstock_messages_received_total",
    "penstock_messages_sent_total",
    "penstock_stored_messages_total",
)
GROUP_LAG, DISK_FREE = "penstock_group_lag", "penstock_disk_free_bytes"
SEGMENTS_LEFT = 2
"""With less room than this on its disk the log is full soon."""


class RateLook(NamedTuple):
    """Rates in messages a second at a time (Unix, ms); None: not known."""

    time_ms: int
    received: float | None
    sent: float | None


class Overview:
    """Asks the server once for all who look within a second."""

    def __init__(self) -> None:
        self.looks: deque[RateLook] = deque(maxlen=KEPT_LOOKS)
        self.watch: Watch | None = None
        """What saw the last minutes; None: the console is no operator."""
        self._rates = Rates()
        self._figures: Figures | None = None
        self._looked_s = 0.0
        self._lock = asyncio.Lock()

    async def figures(self, operator: OperatorConnection) -> Figures:
        """Raises an OperatorError."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._figures is None or now_s - self._looked_s >= FRESH_S:
                self._figures = Figures(*await operator.server())
                self._looked_s = now_s
                received, sent = (self._rate(name, now_s) for name in (RECEIVED, SENT))
                if received is None:
                    received = self._rate(STORED, now_s)
                self.looks.append(RateLook(round(time.time() * 1_000), received, sent))
            return self._figures

    def _rate(self, name: str, now_s: float) -> float | None:
        assert self._figures is not None
        total = self._figures.total(name)
        return None if total is None else self._rates.rate(name, total, now_s)


def troubles(figures: Figures) -> list[Trouble]:
    """What is wrong right now, with the remedy."""
    server, found = figures.server, []
    if server.unready:
        found.append(
            Trouble(server.unready, "no client should come here until this is over; see the log of the server")
        )
    if server.health:
        found.append(Trouble(server.health, "see docs/operations.md, under what the health line says"))
    if figures.total("penstock_link_connected") == 0:
        found.append(
            Trouble("the gateway is not connected to its store", "check that the store runs and can be reached")
        )
    free, segment = figures.total(DISK_FREE), json.loads(server.settings)["store.segment_bytes"]
    if free is not None and free < SEGMENTS_LEFT * segment:
        found.append(
            Trouble(
                f"the disk of the log has {free / 1e9:,.1f} GB left, less than {SEGMENTS_LEFT} segments",
                "set store.retention_bytes or store.retention_age_s, or enlarge the disk",
            )
        )
    damaged = figures.total("penstock_scrub_damaged_bytes")
    if damaged:
        found.append(
            Trouble(f"{damaged:,.0f} bytes of the log are damaged", "run `penstock store repair` with a backup")
        )
    dead = {group: number for group, number in figures.by("penstock_group_consumers", "group") if not number}
    for group, lag in figures.by(GROUP_LAG, "group"):
        if lag and group in dead:
            what = f"group {group} has a lag of {lag:,.0f} messages and no consumer"
            found.append(Trouble(what, "start a consumer", "/groups"))
    return found
