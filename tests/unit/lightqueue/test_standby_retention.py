"""Standbys drop what the leader has dropped, and their index has nothing that a crash may take out of the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.opening import OpenStore
from lightqueue.standby import Standby
from store.log.replicated import ReplicatedLog, replicated_in
from store.records._records import RecordBatch
from store.records.records import RecordFlag, RecordType
from store.replication.judging import NOTHING_ACCEPTED
from store.settings import StoreSettings

SEGMENT_BYTES = 64 << 10
TOPIC = "FZ-3eS7bT52AbLBNFg2Q4A"
PATIENCE_S = 60


class Given:
    """What a leader has given on."""

    def __init__(self) -> None:
        self.data = b""

    def check(self) -> None: ...

    def take(self, data: bytes) -> None:
        self.data += data


class Cluster:
    """A leader and a standby, with the frames between them."""

    def __init__(self, folder: Path) -> None:
        self.frames = Given()
        self._written = 0
        self.closing = ExitStack()
        opened, self.leader_log = self._open(folder / "leader")
        first = Standby(opened, self._settings(folder / "leader"))
        self.leader_log.taker = self.frames
        self.frames.take(self.leader_log.not_accepted())
        self.leader = MessageStore(self._settings(folder / "leader"), opened=first.lead(1))
        self.closing.callback(self.leader.close)
        opened, self.standby_log = self._open(folder / "standby")
        self.standby = Standby(opened, self._settings(folder / "standby"))

    def _settings(self, data: Path) -> StoreSettings:
        return StoreSettings(
            data=data, segment_bytes=SEGMENT_BYTES, retention_bytes=3 * SEGMENT_BYTES, retention_check_s=1
        )

    def _open(self, data: Path) -> tuple[OpenStore, ReplicatedLog]:
        opened = OpenStore(self._settings(data), opens=replicated_in(TOPIC), follows=True)
        assert isinstance(opened.log, ReplicatedLog)
        return opened, opened.log

    def publish(self, topic: bytes, size: int, flags: int = 0) -> None:
        batch = RecordBatch()
        batch.append(RecordType.MESSAGE, bytes(size), topic=topic, flags=flags)
        self.leader.append(batch)

    def turn(self, keeps: bool = True) -> None:
        """All is accepted, and on the disks of both if it `keeps`."""
        self.leader.tick()
        self.leader_log.accepts(self.leader_log.end)
        if piece := self.frames.data[self._written :]:
            self.standby.write(self._written, piece)
            self._written += len(piece)
        for log in (self.leader_log, self.standby_log) if keeps else ():
            log.keep(NOTHING_ACCEPTED._replace(offset=7, epoch=1, accepted=log.accepted))
        self.standby.tick(time.monotonic())

    @property
    def is_dropped(self) -> bool:
        """Both have dropped all that the leader's retention wants."""
        log = self.leader_log
        has_little = log.end - log.base <= 4 * SEGMENT_BYTES and not self.leader.upkeep.busy
        return has_little and log.base == self.standby_log.base and not self.standby.opened.state.wants_flush

    def until(self, condition: Callable[[], bool], keeps: bool = True) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s
            self.turn(keeps)
            time.sleep(0.001)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    with cluster.closing:
        yield cluster


def test_a_standby_drops_what_the_leader_has_dropped(tmp_path: Path, cluster: Cluster) -> None:
    cluster.publish(b"kept", 10, RecordFlag.RETAIN)
    for number in range(40):
        cluster.publish(b"line/%d" % (number % 3), 10_000)
        cluster.turn()
    cluster.until(lambda: cluster.is_dropped and cluster.standby_log.kept == cluster.leader_log.end)
    assert cluster.leader_log.base > 0
    newest = cluster.standby.opened.state.retained.get(b"kept")
    assert newest is not None
    assert newest >= cluster.standby_log.base
    assert newest == cluster.leader.retained.get(b"kept")
    cluster.standby.close()
    opened, log = cluster._open(tmp_path / "standby")
    again = Standby(opened, cluster._settings(tmp_path / "standby"))
    assert log.base == cluster.leader_log.base
    assert again.opened.state.retained.get(b"kept") == newest
    again.close()


def test_retention_does_not_give_the_index_what_is_not_on_the_disk(cluster: Cluster) -> None:
    for number in range(40):
        cluster.publish(b"line/%d" % (number % 3), 10_000)
    cluster.until(lambda: cluster.leader._opened.state.applied > 4 * SEGMENT_BYTES, keeps=False)
    waited_s = time.monotonic() + 1.0
    cluster.until(lambda: time.monotonic() > waited_s, keeps=False)
    for log in (cluster.leader_log, cluster.standby_log):
        assert log.kept == 0
        assert log.base == 0
    cluster.until(lambda: cluster.is_dropped)
    cluster.standby.close()
