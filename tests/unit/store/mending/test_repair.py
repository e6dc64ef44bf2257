"""`penstock store repair` brings back all that a copy has, after each of many kinds of damage, and is never a loss."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.mending.repairing import repair_folder
from lightqueue.message_store import MessageStore
from store.errors import FolderInUse, NotOfThisLog
from store.files.folder import QUARANTINE
from store.files.marks import MARKS
from store.files.segment import segment_paths
from store.mending.repair import UNDO
from store.records.records import RecordFlag
from tests.support.injuries import INJURIES, MESSAGES, TOPICS, Injury, make_store, record_at, segment, zero
from tests.support.kills import Killed, kill_at
from tests.support.server_process import ROOT
from tests.support.store_workload import state_of
from tests.support.stores import (
    KEPT_BYTES,
    Stores,
    commit_log,
    fill,
    flip,
    publish,
    publish_delayed,
    read_all,
    run_upkeep,
    small,
)

Ledger = dict[int, bytes]
Made = tuple[Path, Path, Ledger, dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A data folder, that of another store, the messages of the first, and what its index says."""
    folder = tmp_path_factory.mktemp("made")
    ledger = make_store(folder / "data")
    make_store(folder / "other", seed=1)
    shutil.copytree(folder / "data", folder / "started")
    store = MessageStore(small(folder / "started"))
    state = state_of(store)
    store.close()
    return folder / "data", folder / "other", ledger, state


@pytest.fixture
def data(made: Made, tmp_path: Path) -> Path:
    """A copy of the first."""
    shutil.copytree(made[0], tmp_path / "data")
    return tmp_path / "data"


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "penstock", "store", "repair", str(folder), *map(str, arguments)]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def is_whole(data: Path, made: Made) -> None:
    """All messages are there, and the index says what it said."""
    _, _, ledger, state = made
    report = check_folder(data)
    assert (report.verdict, report.damage, report.earlier) == (CheckResult.INTACT, [], [])
    store = MessageStore(small(data))
    assert {at: store.record(at).payload for at in ledger} == ledger
    assert state_of(store) | {"applied": None} == state | {"applied": None}  # a start may have begun a segment
    assert not any(store.log.lost_bytes.values())
    store.close()


@pytest.mark.parametrize("injury", INJURIES.values(), ids=INJURIES)
@pytest.mark.parametrize("when", ["before a start", "after one"])
def test_all_comes_back_from_a_copy(data: Path, made: Made, injury: Injury, when: str) -> None:
    if when == "after one" and injury.verdict != CheckResult.LOSS:
        pytest.skip("the start has mended it")
    injury.do(data, made[1])
    if when == "after one":
        MessageStore(small(data)).close()
    report = repair_folder(data, [made[0]])
    assert report.repaired.lost == []
    assert bool(report.repaired.got_back) == (injury.verdict == CheckResult.LOSS)
    is_whole(data, made)


def test_repair_keeps_messages_stored_after_the_damage(data: Path, made: Made) -> None:
    """A start lost something, served on, and then a copy was found."""
    segment(data, 1).unlink()
    shutil.rmtree(data / "index")
    store = MessageStore(small(data))
    new = publish(store, "t/1", b"new")
    store.close()
    shown = command(data, "--from", made[0])
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "messages of t/1" in shown.stdout
    store = MessageStore(small(data))
    assert {at: store.record(at).payload for at in made[2]} == made[2]
    read = read_all(store, store.queues.stored_topic(b"t/1"))
    assert [record.log_offset for record in read] == sorted(record.log_offset for record in read)
    assert (len(read), read[-1].log_offset) == (MESSAGES // TOPICS + 1, new)
    store.close()


def test_an_older_and_damaged_copy_gives_what_it_has(data: Path, made: Made, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made[0], copy)
    for path in segment_paths(copy / "log")[2:]:
        path.unlink()
    flip(segment(copy, 1), record_at(segment(copy, 1), 5) + 60)
    for which in (1, 2):
        segment(data, 1).unlink() if which == 1 else zero(segment(data, 1), 64, 5000)
    report = repair_folder(data, [copy])
    assert len(report.repaired.lost) == 2
    again = repair_folder(data, [made[0]])
    assert again.repaired.lost == []
    is_whole(data, made)


def test_without_a_copy_what_is_lost_is_said(data: Path) -> None:
    segment(data, 1).unlink()
    shown = command(data, "--json")
    said = json.loads(shown.stdout)
    assert (shown.returncode, said["got_back"]) == (1, [])
    (lost,) = said["lost"]
    assert said["lost_bytes"] == lost["end"] - lost["start"] > 60_000
    assert command(data).stdout.count("still lost: log_offset") == 1


def test_a_second_copy_in_quarantine_is_of_use(data: Path, made: Made) -> None:
    """A segment was doubled, the start put one aside, and then the other is damaged."""
    shutil.copy(segment(data, 1), data / "log" / f"{int(segment(data, 1).stem) + 8:020}.log")
    MessageStore(small(data)).close()
    zero(segment(data, 1), 4096, 8192)
    assert repair_folder(data).repaired.lost == []
    is_whole(data, made)


def test_repair_puts_unconfirmed_records_back_on_request(tmp_path: Path) -> None:
    settings = small(tmp_path / "used", flush_interval_ms=1_000_000, flush_deadline_ms=1_000_000)
    store = MessageStore(settings)
    publish(store, "t", b"first")
    commit_log(store).flusher.flush_now()
    hole = publish(store, "t", b"hole" * 300)
    behind = publish(store, "t", b"behind")
    data = tmp_path / "data"
    shutil.copytree(settings.data, data)
    store.close()
    zero(segment(data, 0), hole, 512)
    store = MessageStore(small(data))
    new = publish(store, "t", b"new")
    store.close()
    assert repair_folder(data).repaired.got_back == []
    report = repair_folder(data, with_unconfirmed=True)
    assert report.repaired.topics == {"t": 1}
    assert [loss.start for loss in report.repaired.lost] == [hole]
    store = MessageStore(small(data))
    assert [store.record(at).payload for at in (behind, new)] == [b"behind", b"new"]
    read = store.read(store.queues.stored_topic(b"t"), 0, 10, 1 << 20)
    assert [read.log_offset(i) for i in range(read.count)][1:] == [behind, new]
    store.close()


def test_a_copy_of_another_log_is_refused_and_nothing_is_changed(data: Path, made: Made) -> None:
    flip(segment(data, 1), record_at(segment(data, 1)) + 60)
    before = {path: path.read_bytes() for path in segment_paths(data / "log")}
    with pytest.raises(NotOfThisLog):
        repair_folder(data, [made[1]])
    assert {path: path.read_bytes() for path in segment_paths(data / "log")} == before
    assert not (data / QUARANTINE).exists()
    assert command(data, "--from", data).returncode == 2
    assert command(data, "--from", data.parent).returncode == 2


def test_a_folder_in_use_is_refused(data: Path) -> None:
    store = MessageStore(small(data))
    with pytest.raises(FolderInUse):
        repair_folder(data)
    store.close()


def test_the_index_alone(data: Path, made: Made) -> None:
    (data / "index" / "CURRENT").unlink()
    shown = command(data, "--index")
    assert (shown.returncode, "the index was built again" in shown.stdout) == (0, True)
    assert check_folder(data).verdict == CheckResult.INTACT
    is_whole(data, made)


def test_repair_keeps_replaced_files(data: Path, made: Made) -> None:
    path = segment(data, 1)
    flip(path, record_at(path) + 60)
    MessageStore(small(data)).close()
    before = path.read_bytes()
    report = repair_folder(data, [made[0]])
    assert report.undo == data / UNDO
    assert (data / UNDO / path.name).read_bytes() == before
    assert path.read_bytes() == segment(made[0], 1).read_bytes()


def test_a_kill_at_every_step(data: Path, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first segment and one behind it are gone, another has a hole, marks are damaged on one side."""
    paths = segment_paths(data / "log")
    paths[0].unlink()
    paths[2].unlink()
    flip(paths[1], record_at(paths[1]) + 60)
    flip(data / "log" / MARKS, 20)
    injured = tmp_path / "injured"
    data.rename(injured)
    step = 2  # behind what LOCK says
    while True:
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(injured, data)
        with monkeypatch.context() as patched:
            kill_at(patched, step)
            with suppress(Killed):
                repair_folder(data, [made[0]])
                break
        if step % 3 == 0:  # a start comes in between
            store = MessageStore(small(data))
            assert all(store.record(at).payload == made[2][at] for at in made[2] if _is_there(store, at))
            store.close()
        repair_folder(data, [made[0]])
        is_whole(data, made)
        step += 4
    assert step > 30


def _is_there(store: MessageStore, log_offset: int) -> bool:
    try:
        store.record(log_offset)
    except LookupError:
        return False
    return True


@pytest.mark.parametrize("flags", [0, RecordFlag.LIVE_ONLY], ids=["delayed", "delayed and live only"])
def test_delayed_messages_come_back_to_an_index_that_knows_them(tmp_path: Path, flags: int) -> None:
    """They are in no queue; the log's beginning is gone, and so is the checkpoint: nothing can be built again."""
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES, index_write_buffer_bytes=64 << 10)
    store = stores()
    fill(store, 6)
    run_upkeep(store)
    assert store.log.base > 0
    places = [publish_delayed(store, "t/late", bytes(300), due_ms=1 << 60, flags=flags) for _ in range(5)]
    stores.close()
    shutil.rmtree(tmp_path / "data" / "index-checkpoint")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    path = [each for each in segment_paths(tmp_path / "data" / "log") if int(each.stem) < places[0]][-1]
    zero(path, places[1] - int(path.stem), 600)
    shown = command(tmp_path / "data", "--from", tmp_path / "copy")
    assert (shown.returncode, "the index stays as it is" in shown.stdout) == (0, True), shown.stdout
    store = stores()
    assert [each.log_offset for each in store.delayed.page(0, 0, 10)] == places
    assert [store.record(at).payload for at in places] == [bytes(300)] * 5
    stores.close()
