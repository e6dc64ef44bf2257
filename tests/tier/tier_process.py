"""`penstock tier` as a subprocess, and a store whose retention drops what is older than a moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from loadtest.chaos.part import Part
from penstock.sync import Client
from store.files.segment import segment_paths
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until
from tests.tier.places import TablePlace

SMALL = {
    "store.segment_bytes": 262_144,
    "store.retention_bytes": 262_144,
    "store.retention_check_s": 1,
    "store.flush_interval_ms": 20,
    "gateway.maximum_packet_size_bytes": 65_536,
}


PATIENCE_S = 240  # on a busy machine; it bounds a test that hangs


def wait_until(condition: Callable[[], bool]) -> None:
    until(condition, PATIENCE_S)


class Tier(Part):
    """`penstock tier` on a store."""

    says = "tier"

    def __init__(
        self, log: Path, store: StoreProcess, place: TablePlace, serves: bool = False, **settings: object
    ) -> None:
        """`serves`: it connects as an operator, and answers reads of history."""
        self.place = place
        super().__init__(
            log,
            ["tier", "--store", f"unix://{store.data}/operator.sock" if serves else store.url, "--url", place.url],
            {"tier.commit_s": 1, **settings},
            {name.upper(): text for name, text in place.options.items() if name.startswith("aws_")},
            admin=False,
        )

    def rows(self) -> list[dict[str, object]]:
        table = DeltaTable(self.place.url, storage_options=self.place.options)
        found = table.to_pyarrow_table(columns=["topic", "payload", "log_offset", "queue_offset"]).to_pylist()
        return sorted(found, key=lambda row: int(row["log_offset"]))

    def has(self, rows: int) -> bool:
        try:
            table = DeltaTable(self.place.url, storage_options=self.place.options)
            written: list[int] = pa.table(table.get_add_actions())["num_records"].to_pylist()
        except TableNotFoundError:
            return False
        return sum(written) >= rows


def publish(store: StoreProcess, first: int, number: int, rng: random.Random) -> int:
    """Acknowledged messages with numbers, to three topics in turn; the next number."""
    with Client(store.url.replace("tcp://", "penstock://")) as client:
        for i in range(first, first + number):
            client.publish(f"line/{i % 3}", b"%06d" % i + rng.randbytes(3_000))
    return first + number


def oldest(store: StoreProcess) -> int:
    return int(min(path.stem for path in segment_paths(store.data / "log")))
