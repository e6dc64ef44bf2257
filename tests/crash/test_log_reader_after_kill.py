"""SIGKILL of a store whose log is read under a name: what the reader has not read is there, whatever retention says."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.links.address import StoreAddress
from penstock.store_client import StoreClient
from penstock.sync import Client
from store.files.segment import segment_paths
from store.records._records import walk
from store.records.records import RecordType
from store.wire.log_messages import HoldLog, LogHeld, LogRead, ReadLog
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

KILLS = 4
SEGMENT_BYTES = 262_144
PIECE_BYTES = 100_000
"""Of the log that is read before the reader says where it is."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    settings = {
        "store.segment_bytes": SEGMENT_BYTES,
        "store.retention_bytes": SEGMENT_BYTES,
        "store.retention_check_s": 1,
        "gateway.maximum_packet_size_bytes": 65_536,
    }
    store = StoreProcess(tmp_path, settings=settings)
    yield store
    store.close()


class Reader:
    """Reads up to what is on the disk, and says so now and then; each connection may be its last."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.payloads: list[bytes] = []
        self.at = 0

    def read_on(self) -> None:
        with StoreClient(StoreAddress.parse(self._url), "", None) as store:
            held = store.call(HoldLog("export"), LogHeld)
            assert held.log_base <= held.log_offset <= self.at, "retention did not wait, or the place moved by itself"
            said = self.at
            while self.at < held.on_disk:
                at = self.at
                piece = self._piece(store, at)
                self.payloads += piece
                if self.at == at:
                    break
                if self.at - said > PIECE_BYTES:
                    said = self.at
                    held = store.call(HoldLog("export", self.at), LogHeld)
            store.call(HoldLog("export", self.at), LogHeld)

    def _piece(self, store: StoreClient, start: int) -> list[bytes]:
        store._link.send(ReadLog(start, 65_536, on_disk=True), 1)
        frame = store._link.receive()
        answer = frame.message
        assert isinstance(answer, LogRead)
        assert answer.log_base <= start
        self.at = answer.start + len(frame.records)
        return [record[9] for record in walk(bytes(frame.records)) if record[3] == RecordType.MESSAGE]


def test_a_reader_misses_nothing_and_retention_goes_on_without_it(store: StoreProcess, seed: int) -> None:
    rng = random.Random(seed)
    reader = Reader(store.url)
    sent = 0
    reader.read_on()
    for _ in range(KILLS):
        with Client(store.url.replace("tcp://", "penstock://")) as client:
            for _ in range(rng.randrange(60, 200)):
                client.publish("t", b"%06d" % sent + rng.randbytes(5_000))
                sent += 1
        if rng.random() < 0.7:
            reader.read_on()
        store.kill()
        store.start()

    def has_all() -> bool:
        """What is not on the disk yet gets there within the flush policy's interval."""
        reader.read_on()
        return len(reader.payloads) >= sent

    wait_until(has_all, 60)
    assert [int(payload[:6]) for payload in reader.payloads] == list(range(sent))
    oldest = oldest_segment(store)
    with Client(store.url.replace("tcp://", "penstock://")) as client:
        for _ in range(200):
            client.publish("t", rng.randbytes(5_000))
    shown = subprocess.run([*command("inspect", str(store.data)), "--json"], check=True, capture_output=True)
    (row,) = json.loads(shown.stdout)["readers"]
    assert (row["name"], row["log_offset"], row["lost_bytes"]) == ("export", reader.at, 0)
    subprocess.run(command("forget-reader", "export", f"--data={store.data}"), check=True, capture_output=True)
    again = subprocess.run(command("forget-reader", "export", f"--data={store.data}"), capture_output=True, text=True)
    assert again.returncode == 1
    assert "reader export of the log" in again.stderr

    wait_until(lambda: oldest_segment(store) > oldest, 60)


def oldest_segment(store: StoreProcess) -> str:
    return min(segment.name for segment in segment_paths(store.data / "log"))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "store", *arguments]
