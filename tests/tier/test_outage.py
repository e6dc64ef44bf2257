"""The storage is away, refuses, is slow, answers wrongly or cuts answers off; a broker takes messages; then it is back.

What was acknowledged is in the table and in the log behind it, by count and a sum of hashes. The broker acknowledges
meanwhile, the tier goes on as one process whose memory does not grow, and it catches up.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from notify.links.address import StoreAddress
from notify.local.tier import TIER_READER
from penstock.servers.process import OPERATOR_SOCKET
from penstock.tier.store_log import HeldLog, StoreLog
from store.files.segment import segment_paths
from store.wire.messages import Role
from tests.conftest import ServerFactory
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until as until
from tests.tier.places import BUCKET, TablePlace, s3_options
from tests.tier.steady_publisher import SteadyPublisher
from tests.tier.storage_wire import Mood, StorageWire
from tests.tier.tally import in_table_and_log, tally

log = logging.getLogger(__name__)
ILL = (Mood.AWAY, Mood.REFUSING, Mood.SLOW, Mood.WRONG, Mood.CUT)
PATIENCE_S = 120
MB = 1_000_000
MOST_WAIT_S = 5.0
MOST_MORE_BYTES = 128 * MB
"""Of resident memory in the trouble and after it: a commit's parts, whatever was stored meanwhile."""
LEAST_HASTE = 5
"""Times as fast as messages come in it catches up."""
SMALL = {
    "store.segment_bytes": 262_144,
    "store.retention_bytes": 262_144,
    "gateway.maximum_packet_size_bytes": 65_536,
}


@dataclass(frozen=True)
class Size:
    """How many messages a second, for how long each kind of trouble, and whether the storage is well between two."""

    per_s: int
    each_s: int
    is_well_between: bool
    settings: dict[str, object]


SHORT = Size(500, 1, True, {**SMALL, "tier.commit_s": 1})
FULL = Size(10_000, 60, False, {"tier.commit_s": 5, "store.segment_bytes": 16 << 20, "store.retention_bytes": 32 << 20})


@dataclass
class Watched:
    """The tier of a server, as its operator and its system see it. `peaks`: resident bytes, by what was going on."""

    process: psutil.Process
    store: StoreLog
    peaks: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __str__(self) -> str:
        return ", ".join(f"{during} {peak / MB:.0f} MB" for during, peak in self.peaks.items())

    def place(self) -> tuple[int, int]:
        """Where it is in the log, and where the log ends."""
        held = self.store.hold()
        return held.log_offset, held.on_disk

    def wait(self, during: str, condition: Callable[[], bool]) -> None:
        def watched() -> bool:
            self.peaks[during] = max(self.peaks[during], self.process.memory_info().rss)
            return condition()

        until(watched, PATIENCE_S)


@pytest.fixture
def wire(s3_endpoint: str) -> Iterator[StorageWire]:
    wire = StorageWire(s3_endpoint, seed=39)
    yield wire
    wire.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}"


@pytest.fixture
def server(
    penstock_server: ServerFactory, size: Size, wire: StorageWire, url: str, monkeypatch: pytest.MonkeyPatch
) -> PenstockServer:
    for name, value in s3_options(wire.endpoint).items():
        if name.startswith("aws_"):
            monkeypatch.setenv(name.upper(), value)
    return penstock_server(settings={"tier.url": url, "store.retention_check_s": 1, **size.settings})


@pytest.fixture
def watched(server: PenstockServer) -> Iterator[Watched]:
    until(lambda: "\ntier s3" in server.log_text(), PATIENCE_S)
    (process,) = (child for child in psutil.Process(server.process.pid).children() if "tier" in child.cmdline())
    address = StoreAddress.parse(f"unix://{server.data / OPERATOR_SOCKET}")
    store = StoreLog(address, "", None, Role.OPERATOR, HeldLog(TIER_READER))
    yield Watched(process, store)
    store.close()


@pytest.fixture
def publisher(server: PenstockServer, size: Size) -> Iterator[SteadyPublisher]:
    publisher = SteadyPublisher(server.port, size.per_s, seed=39)
    yield publisher
    publisher.close()


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(SHORT, id="short"),
        # Alone: it measures how fast the tier catches up.
        pytest.param(FULL, id="full", marks=[pytest.mark.nightly, pytest.mark.alone]),
    ],
)
@pytest.mark.catalogue("N49", "N50")
def test_an_outage_of_the_storage_loses_nothing(
    size: Size,
    server: PenstockServer,
    wire: StorageWire,
    watched: Watched,
    publisher: SteadyPublisher,
    url: str,
    s3_endpoint: str,
) -> None:
    watched.wait("well", lambda: publisher.acked >= size.per_s * size.each_s and watched.place()[0] > 0)
    for mood in ILL:
        fall_ill(mood, size, wire, watched, publisher)
        if size.is_well_between:
            caught_up_bytes_per_s(watched, wire)
    per_s = caught_up_bytes_per_s(watched, wire)
    acknowledged = publisher.finish()
    _, end = watched.place()
    log.info("%d messages, %s; the longest wait was %.2f s", acknowledged.count, watched, publisher.longest_wait_s)
    watched.process.suspend()  # so that the log keeps what is behind the table's end
    assert tally(in_table_and_log(TablePlace(url, s3_options(s3_endpoint)), watched.store)) == acknowledged
    assert min(int(path.stem) for path in segment_paths(server.data / "log")) > 0, "retention drops what the table has"
    assert publisher.longest_wait_s < MOST_WAIT_S
    assert watched.process.is_running(), "the same process throughout"
    assert "was not heard of" not in server.log_text()
    assert max(watched.peaks.values()) < watched.peaks["well"] + MOST_MORE_BYTES
    if size is FULL:
        assert per_s > LEAST_HASTE * size.per_s * end / acknowledged.count


def fall_ill(mood: Mood, size: Size, wire: StorageWire, watched: Watched, publisher: SteadyPublisher) -> None:
    """Wait until it has hurt, and the broker has acknowledged what comes in so long a time."""
    goal, asked = publisher.acked + size.per_s * size.each_s, wire.answered[mood]
    wire.become(mood)
    watched.wait(mood.value, lambda: publisher.acked >= goal and (mood is Mood.AWAY or wire.answered[mood] > asked))


def caught_up_bytes_per_s(watched: Watched, wire: StorageWire) -> float:
    """The storage is well again: wait until the table has what was stored until now. Returns how fast it got it.

    The time is that from the first answer on: until then the tier waits before it tries again.
    """
    start, end = watched.place()
    wire.become(Mood.WELL)
    began_s = time.monotonic()
    watched.wait("back", lambda: wire.first_answer_s is not None)
    first_s = wire.first_answer_s
    assert first_s is not None
    watched.wait("back", lambda: watched.place()[0] >= end)
    took_s = time.monotonic() - first_s
    per_s = (watched.place()[0] - start) / took_s
    log.info(
        "%.1f MB behind; the first answer after %.1f s, then %.1f s, %.1f MB/s",
        (end - start) / MB,
        first_s - began_s,
        took_s,
        per_s / MB,
    )
    return per_s
