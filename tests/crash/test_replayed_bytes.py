"""However the log is filled, a start after a kill reads a bounded part of it again."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightqueue import opening
from lightqueue.message_store import MessageStore
from lightqueue.queues.projection import Projection
from store.log.index import UNFLUSHED
from tests.support.append_load import SETTINGS
from tests.support.stores import crash_copy, publish, small, wait_until

BYTES_PER_S = 20_000_000
APPENDED = 16_000_000
MOST_REPLAYED = 12_000_000  # index_flush_log_bytes, what is appended while a busy machine takes its time, and some


@pytest.mark.parametrize("kind", ["large", "topics", "sessions"])
def test_a_start_after_a_kill_replays_a_bounded_part(tmp_path: Path, kind: str) -> None:
    randomly = random.Random(kind)
    run = [sys.executable, "-m", "tests.support.append_load", str(tmp_path / "data"), kind, str(BYTES_PER_S)]
    for _ in range(2):
        process = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        most = APPENDED + randomly.randrange(4_000_000)
        for line in process.stdout:
            what, number = line.split()
            if what == "replayed":
                assert int(number) < MOST_REPLAYED
            elif int(number) > most:
                break
        process.kill()
        process.wait()
        process.stdout.close()
    store = MessageStore(small(tmp_path / "data", **SETTINGS))
    assert 0 < store.replayed_bytes < MOST_REPLAYED
    store.close()


def test_a_kill_in_the_midst_of_a_replay_does_not_have_it_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "REPLAY_BYTES", 1 << 20)
    options = {"segment_bytes": 64 << 20, "index_flush_log_bytes": 1 << 20}
    store = MessageStore(small(tmp_path / "data", **options))
    for number in range(32):
        publish(store, f"line/{number % 3}", bytes(1 << 20))
    end = store.end
    store.close()
    shutil.rmtree(tmp_path / "data" / "index")
    replay, pieces = Projection.replay, []

    def killed_halfway(state: Projection, start: int, data: memoryview) -> None:
        wait_until(lambda: not state.index._db.property_int_value(UNFLUSHED))  # the disk keeps up, however busy it is
        replay(state, start, data)
        pieces.append(start)
        if len(pieces) == 20:
            crash_copy(tmp_path / "data", tmp_path / "killed")

    monkeypatch.setattr(Projection, "replay", killed_halfway)
    store = MessageStore(small(tmp_path / "data", **options))
    assert store.replayed_bytes > 0.9 * end
    store.close()
    store = MessageStore(small(tmp_path / "killed", **options))
    assert store.replayed_bytes < 0.6 * end
    store.close()
