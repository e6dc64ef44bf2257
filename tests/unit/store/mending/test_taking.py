"""Copies of another store's log: whatever is killed meanwhile, there is the old log or the whole new one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.message_store import MessageStore
from lightqueue.opening import OpenStore
from store.errors import CopyDamaged, DamagedInCluster, FolderUnusable, NoSuchCopy
from store.files.folder import CHECKPOINT, INDEX, LOG, DataFolder
from store.log.copied import COPIED, COPYING, finish_copy
from store.log.giving import GivenLog, given_log, read_checkpoint, read_segment
from store.log.mark_file import read_mark
from store.log.replicated import ReplicatedLog, replicated_in
from store.mending.backup import backup
from store.mending.taking import LogCopy, OwnLog
from store.records._records import RecordBatch
from store.records.records import RecordFlag, RecordType
from store.replication.frames import Leader
from store.replication.judging import ReplicaMark
from store.settings import StoreSettings
from tests.support.kills import Killed, kill_at

SEGMENT_BYTES = 64 << 10
PIECE_BYTES = 10_000
TOPIC = "FZ-3eS7bT52AbLBNFg2Q4A"
PATIENCE_S = 60


def settings(data: Path) -> StoreSettings:
    return StoreSettings(data=data, segment_bytes=SEGMENT_BYTES, retention_bytes=3 * SEGMENT_BYTES, retention_check_s=1)


class LeadingStore:
    """A store that leads, and gives its log piece by piece. `meanwhile` is called before each piece."""

    def __init__(self, data: Path) -> None:
        opened = OpenStore(settings(data), opens=replicated_in(TOPIC))
        assert isinstance(opened.log, ReplicatedLog)
        self.log = opened.log
        self.log.taker = self
        self.messages = MessageStore(settings(data), opened=opened)
        self.meanwhile: Callable[[], object] = lambda: None
        self.pieces = 0

    def check(self) -> None: ...

    def take(self, data: bytes) -> None: ...

    def publish(self, number: int, size: int = 9_000, flags: int = 0) -> None:
        batch = RecordBatch()
        batch.append(RecordType.MESSAGE, bytes([number % 251]) * size, topic=b"line/%d" % (number % 3), flags=flags)
        self.messages.append(batch)

    def accept(self, settles: bool = True) -> None:
        """All that was published."""
        self.log.accepts(self.log.end)
        self.log.keep(ReplicaMark(7, 0x1234, 1, self.log.end, Leader("tcp://10.0.0.1:7700", bytes(16))))
        assert not settles or self.log.keeper.wait_kept(PATIENCE_S)

    def fill(self, messages: int) -> None:
        """Until retention has done what it wants."""
        for number in range(messages):
            self.publish(number)
            self.accept(settles=False)
            self.messages.tick()
        deadline_s = time.monotonic() + PATIENCE_S
        while self.messages.upkeep.busy or self.log.end - self.log.base > 4 * SEGMENT_BYTES:
            assert time.monotonic() < deadline_s
            self.messages.tick()
            self.accept(settles=False)
        self.accept()

    # --- GivesLog

    def given(self) -> GivenLog:
        return given_log(self.log, self.messages.folder, 0, 1_000)

    def segment(self, base: int, at: int) -> bytes:
        self._piece()
        return read_segment(self.log, base, at, PIECE_BYTES)

    def checkpoint(self, name: str, file: str, at: int) -> bytes:
        self._piece()
        return read_checkpoint(self.messages.folder, name, file, at, PIECE_BYTES)

    def _piece(self) -> None:
        self.pieces += 1
        self.meanwhile()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[LeadingStore]:
    leader = LeadingStore(tmp_path / "leader")
    leader.publish(0, flags=RecordFlag.RETAIN)
    yield leader
    leader.accept()
    leader.messages.close()


def files(data: Path, end: int) -> dict[str, bytes]:
    paths = sorted((data / LOG).glob("*.log"))
    return {each.name: each.read_bytes()[: end - int(each.stem)] for each in paths if int(each.stem) < end}


def is_copy(data: Path, leader: LeadingStore, accepted: int) -> None:
    """The folder has the leader's log, index and mark, and nothing else is left."""
    opened = OpenStore(settings(data), opens=replicated_in(TOPIC), follows=True)
    try:
        assert isinstance(opened.log, ReplicatedLog)
        assert opened.log.end == opened.log.accepted == accepted
        assert opened.log.keeper.kept.leader == Leader("tcp://10.0.0.1:7700", bytes(16))
        assert opened.log.base == leader.log.base
        retained, theirs = opened.state.retained.get(b"line/0"), leader.messages.retained.get(b"line/0")
        assert retained is not None
        assert retained == theirs
        assert files(data, accepted) == files(leader.messages.settings.data, accepted)
    finally:
        opened.close()
    assert not (data / COPIED).exists()
    assert not (data / COPYING).exists()


def test_records_that_are_not_accepted_are_not_copied(tmp_path: Path, leader: LeadingStore) -> None:
    for number in range(10):
        leader.publish(number)
    leader.accept()
    accepted = leader.log.end
    leader.publish(11)
    leader.messages.log.tick(time.monotonic())
    data = tmp_path / "data"
    with_lock = DataFolder(data)
    copy = LogCopy(data, leader)
    taken = copy.take(TOPIC)
    assert taken.copied_bytes == taken.given.mark.accepted == accepted < leader.log.end
    copy.commit()
    with_lock.close()
    is_copy(data, leader, accepted)
    deadline_s = time.monotonic() + PATIENCE_S
    while leader.log.flusher.flushed < leader.log.end:
        assert time.monotonic() < deadline_s
        leader.log.flusher.hurry()
    done = backup(tmp_path / "leader", tmp_path / "backup")
    assert done.manifest.end == accepted
    assert (tmp_path / "backup" / LOG / f"{done.manifest.segments[-1].base:020}.log").stat().st_size == (
        accepted - done.manifest.segments[-1].base
    )


def test_a_kill_at_every_step(tmp_path: Path, leader: LeadingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the store that copies, which has an old log: it has that one, or all of the leader's."""
    data = tmp_path / "data"
    DataFolder(data).close()
    first = LogCopy(data, leader)
    leader.accept()
    old = first.take(TOPIC).given.mark.accepted
    first.commit()
    is_copy(data, leader, old)
    leader.fill(40)
    assert leader.log.base > old
    accepted, step = leader.log.end, 0
    is_done = is_new = False
    earlier = tmp_path / "earlier"
    shutil.copytree(data, earlier)
    while not is_done:
        if is_new or step % 12 == 0:
            shutil.rmtree(data)
            shutil.copytree(earlier, data)
        with monkeypatch.context() as patched:
            kill_at(patched, step, (os, "fsync"), (Path, "mkdir"), (Path, "open"), (shutil, "rmtree"))
            with suppress(Killed):
                copy = LogCopy(data, leader, OwnLog(data / LOG, old))
                if not (data / COPIED).exists():
                    copy.take(TOPIC)
                    copy.commit()
                finish_copy(data)
                is_done = True
        is_new = (data / COPIED).exists() or is_done
        known = read_mark(data)
        assert is_new or (known is not None and known.mark.accepted == old)
        finish_copy(data)
        if is_new:
            is_copy(data, leader, accepted)
        step += 3
    assert step > 30


def test_the_other_store_goes_on_meanwhile(tmp_path: Path, leader: LeadingStore) -> None:
    """It stores, and drops what is being copied; and it is killed, and another one gives the rest."""
    leader.fill(40)
    data = tmp_path / "data"
    DataFolder(data).close()

    def fails() -> None:
        if leader.pieces % 5 == 0:
            raise ConnectionResetError

    leader.meanwhile = fails
    failed = 0
    for _ in range(100):
        try:
            LogCopy(data, leader).take(TOPIC)
            break
        except FolderUnusable:
            failed += 1
            assert not (data / COPIED).exists()
    assert failed > 2  # each goes on where the one before it ended

    def drops() -> None:
        if leader.pieces == 3:
            leader.fill(40)

    shutil.rmtree(data / COPYING)
    leader.pieces, leader.meanwhile = 0, drops
    base = leader.log.base
    copy = LogCopy(data, leader)
    taken = copy.take(TOPIC)
    assert leader.log.base > base
    copy.commit()
    is_copy(data, leader, taken.given.mark.accepted)


def test_no_index_is_made_without_the_beginning(tmp_path: Path) -> None:
    """Even if store.on_damage says so: the other stores have sessions and groups from before."""
    leader = LeadingStore(tmp_path)
    leader.fill(40)
    assert leader.log.base
    leader.messages.close()
    for name in (INDEX, CHECKPOINT):
        shutil.rmtree(tmp_path / name)
    remedy = rf"`penstock cluster recover {tmp_path}`"
    with pytest.raises(DamagedInCluster, match=remedy):
        OpenStore(settings(tmp_path), opens=replicated_in(TOPIC))
    damage = check_folder(tmp_path).damage
    assert {(each.what, each.verdict, remedy.strip("`") in each.do) for each in damage} == {
        ("index", CheckResult.MENDS_ITSELF, True),
        ("checkpoint", CheckResult.MENDS_ITSELF, True),
    }


def test_damaged_segments_are_not_copied(tmp_path: Path, leader: LeadingStore) -> None:
    for number in range(20):
        leader.publish(number)
    leader.accept()
    data = tmp_path / "data"
    DataFolder(data).close()
    with pytest.raises(CopyDamaged, match="this store follows another"):
        LogCopy(data, leader).take("another")
    segment = leader.log.segments[0].path
    whole = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(30_000)
        file.write(bytes(100))
    with pytest.raises(CopyDamaged, match="no valid record at log_offset"):
        LogCopy(data, leader).take(TOPIC)
    with segment.open("r+b") as file:
        file.write(whole)
    accepted = LogCopy(data, leader).take(TOPIC).given.mark.accepted
    own = tmp_path / "own"
    shutil.copytree(data / COPYING / LOG, own)
    newest = sorted(own.glob("*.log"))[-1]
    newest.write_bytes(newest.read_bytes()[:-8] + b"differs!")
    shutil.rmtree(data / COPYING)
    assert LogCopy(data, leader, OwnLog(own, accepted)).take(TOPIC).copied_bytes == accepted
    with pytest.raises(NoSuchCopy):
        leader.segment(1, 0)
