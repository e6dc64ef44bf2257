"""The index of a store in a cluster after a crash: it has nothing that the log is cut off before."""

import logging
import random
import shutil
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.opening import OpenStore
from store.log.replicated import ReplicatedLog, replicated_in
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.replication.judging import NOTHING_ACCEPTED
from store.settings import StoreSettings

TOPIC = "FZ-3eS7bT52AbLBNFg2Q4A"
CRASHES = 12


class Accepting:
    """Takes appends, which are accepted later."""

    def check(self) -> None:
        pass

    def take(self, data: bytes) -> None:
        pass


def settings(path: Path) -> StoreSettings:
    return StoreSettings(
        data=path,
        segment_bytes=1 << 20,
        index_write_buffer_bytes=64 << 10,
        index_flush_log_bytes=1 << 20,
        index_flush_ms=1,
        reserve_bytes=0,
    )


def opened(path: Path) -> tuple[MessageStore, ReplicatedLog]:
    each = settings(path)
    found = OpenStore(each, opens=replicated_in(TOPIC))
    assert isinstance(found.log, ReplicatedLog)
    found.log.taker = Accepting()
    return MessageStore(each, opened=found), found.log


def publish(messages: MessageStore, chance: random.Random) -> None:
    batch = RecordBatch()
    for _ in range(20):
        batch.append(RecordType.MESSAGE, bytes(chance.randrange(200)), topic=b"t%d" % chance.randrange(500))
    messages.append(batch)


def test_a_kill_with_an_index_batch_in_hand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log is accepted and kept in leaps, far behind what is appended; each crash is a copy of the files."""
    caplog.set_level(logging.WARNING, "penstock.store")
    chance = random.Random(7)
    messages, log = opened(tmp_path / "data")
    held = flushed = 0
    places = [log.end]
    for crash in range(CRASHES):
        for turn in range(150):
            publish(messages, chance)
            places.append(log.end)
            messages.tick()
            held += messages._opened.is_held()
            if turn % 40 == 39:
                accepted = chance.choice(places[-100:])
                if accepted > log.accepted:
                    log.accepts(accepted)
                    log.keep(NOTHING_ACCEPTED._replace(offset=crash, epoch=1, accepted=accepted))
                    assert log.keeper.wait_kept(30)
        copy = tmp_path / f"crash-{crash}"
        shutil.copytree(tmp_path / "data", copy, ignore=shutil.ignore_patterns("LOCK"))
        again, its_log = opened(copy)
        assert its_log.end == its_log.accepted == log.kept
        flushed += again.replayed_bytes < its_log.end
        again.close()
    assert held  # it had to wait
    assert flushed  # and was flushed all the same
    assert not [each for each in caplog.records if "other users" not in each.message]
    log.accepts(log.end)
    log.keep(NOTHING_ACCEPTED._replace(offset=99, epoch=1, accepted=log.end))
    assert log.keeper.wait_kept(30)
    messages.close()
