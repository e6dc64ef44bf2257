"""`penstock store check` names each of many kinds of damage, says what the next start does, and changes nothing."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.message_store import MessageStore
from store.errors import FolderUnusable, IndexDamaged, StoreError
from store.files.marks import MARKS
from store.files.segment import HEADER_BYTES, segment_header, segment_paths
from store.mending.foresight import foresee
from store.records._records import crc32c
from tests.support.injuries import INJURIES, OF_THE_INDEX, Injury, make_store, record_at, segment, zero
from tests.support.server_process import ROOT
from tests.support.stores import commit_log, flip, publish, small

Ledger = dict[int, bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Ledger]:
    """A data folder, that of another store, and the messages of the first."""
    folder = tmp_path_factory.mktemp("made")
    ledger = make_store(folder / "data")
    make_store(folder / "other", seed=1)
    return folder / "data", folder / "other", ledger


@pytest.fixture
def data(made: tuple[Path, Path, Ledger], tmp_path: Path) -> Path:
    """A copy of the first."""
    shutil.copytree(made[0], tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def store(data: Path) -> Iterator[MessageStore]:
    store = MessageStore(small(data))
    yield store
    store.close()


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    )


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "penstock", "store", "check", str(folder), *arguments]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def started(data: Path) -> MessageStore:
    """A store whose whole index was read; what turns out to be damaged then is mended by one more start."""
    for _ in range(3):
        store = MessageStore(small(data))
        try:
            for _ in store.index.scan(b"", b"\xff"):
                pass
        except IndexDamaged:
            store.close()
            continue
        return store
    raise AssertionError("it does not heal")


def read(store: MessageStore, ledger: Ledger) -> Ledger:
    """What is left of the messages, by their place."""
    found = {}
    for log_offset in ledger:
        try:
            record = store.record(log_offset)
        except LookupError:
            continue
        if record.topic:
            found[log_offset] = record.payload
    return found


def test_an_intact_folder(data: Path, made: tuple[Path, Path, Ledger]) -> None:
    report = check_folder(data)
    assert (report.verdict, report.damage, report.earlier, report.in_use) == (CheckResult.INTACT, [], [], False)
    assert report.records > len(made[2])


@pytest.mark.parametrize("injury", INJURIES.values(), ids=INJURIES)
def test_damage_is_named_and_the_start_does_what_check_said(
    data: Path, made: tuple[Path, Path, Ledger], injury: Injury
) -> None:
    _, other, ledger = made
    injury.do(data, other)
    before = listing(data)
    report = check_folder(data)
    assert listing(data) == before
    assert (frozenset(each.kind for each in report.damage), report.verdict) == (injury.kinds, injury.verdict)
    foreseen = foresee(data / "log").findings
    store = started(data)
    if injury not in OF_THE_INDEX.values():
        assert sorted(map(repr, commit_log(store).findings)) == sorted(map(repr, foreseen))
    found = read(store, ledger)
    store.close()
    assert found.items() <= ledger.items()
    losses = [each for each in report.damage if each.verdict == CheckResult.LOSS]
    lost = ledger.keys() - found.keys()
    assert all(any(loss.start <= at < loss.end for loss in losses) for at in lost)
    if injury is not INJURIES["a bit of a batch's header"]:  # the records in it have checksums of their own
        assert bool(lost) == (injury.verdict == CheckResult.LOSS)
    after = check_folder(data)
    assert (after.verdict, after.damage) == (CheckResult.INTACT, [])
    assert bool(after.earlier) == any(loss.start >= after.first_log_offset for loss in losses)


def _cut(randomly: random.Random, path: Path) -> None:
    os.truncate(path, randomly.randrange(path.stat().st_size))


def _zero(randomly: random.Random, path: Path) -> None:
    zero(path, randomly.randrange(path.stat().st_size) & ~511, 512)


@pytest.mark.parametrize("seed", range(40))
def test_check_foresees_the_findings_of_a_start(data: Path, seed: int) -> None:
    randomly = random.Random(seed)
    if seed % 4 == 0:
        (data / "log" / MARKS).unlink()
    for _ in range(randomly.randint(1, 4)):
        path = randomly.choice([path for path in segment_paths(data / "log") if path.stat().st_size])
        kind = randomly.randrange(4)
        if kind == 0:
            flip(path, randomly.randrange(path.stat().st_size))
        elif kind == 1:
            path.unlink()
        else:
            (_cut, _zero)[kind - 2](randomly, path)
    log = foresee(data / "log")
    store = MessageStore(small(data))
    assert sorted(map(repr, commit_log(store).findings)) == sorted(map(repr, log.findings))
    ends = (
        store.log.base,
        commit_log(store).segments[-1].base if log.end == commit_log(store).segments[-1].base else log.end,
    )
    assert (log.base, log.end) == ends if log.files else True
    store.close()


def test_check_names_the_queue_of_a_damaged_record(data: Path) -> None:
    path = segment(data, 1)
    position = record_at(path)
    flip(path, position + 100)
    with path.open("rb") as file:
        file.seek(position + 40)
        topic = file.read(3).decode()
    (damage,) = check_folder(data).damage
    assert damage.start == int(path.stem) + position
    (held,) = damage.held
    assert (held.queue, held.kind, held.messages) == (topic, "topic", 1)
    assert not damage.held_unknown
    store = MessageStore(small(data))
    queue = store.queues.stored_topic(topic.encode())
    assert store.queues.log_offset_at(queue, held.first_queue_offset) == damage.start
    store.close()


def test_missing_segment_is_not_reported_with_an_earlier_fault(data: Path) -> None:
    flip(segment(data, 0), record_at(segment(data, 0)) + 60)
    segment(data, 1).unlink()
    missing = next(each for each in check_folder(data).damage if each.kind == "missing")
    assert missing.reason.startswith("cut off, but the log goes on at ")


def test_check_says_that_contents_are_unknown_without_an_index(data: Path) -> None:
    shutil.rmtree(data / "index")
    segment(data, 1).unlink()
    missing = next(each for each in check_folder(data).damage if each.kind == "missing")
    assert (missing.held, missing.held_unknown) == ([], True)


def test_a_torn_end_is_no_damage(data: Path) -> None:
    end = check_folder(data).end_log_offset
    path = segment(data, -1)
    with path.open("r+b") as file:
        file.seek(end - int(path.stem))
        file.write(b"half a record")
    report = check_folder(data)
    assert ([each.kind for each in report.damage], report.verdict) == (["torn"], CheckResult.INTACT)


def test_of_a_folder_in_use_sealed_segments_are_read(store: MessageStore, data: Path) -> None:
    publish(store, "new", b"x")
    report = check_folder(data)
    assert (report.verdict, report.in_use) == (CheckResult.INTACT, True)
    flip(segment(data, -1), 100)
    assert check_folder(data).verdict == CheckResult.INTACT
    flip(segment(data, 1), record_at(segment(data, 1)) + 60)
    shown = command(data)
    assert shown.returncode == CheckResult.LOSS
    assert "in use by a process" in shown.stdout


def test_a_newer_format_is_refused(data: Path) -> None:
    path = segment(data, 1)
    header = bytearray(segment_header(int(path.stem), bytes(16), 0))
    header[8] = 2
    header[60:] = crc32c(header[:60]).to_bytes(4, "little")
    with path.open("r+b") as file:
        file.write(header)
    shown = command(data)
    assert (shown.returncode, "version 2; this program reads version 1" in shown.stdout) == (CheckResult.REFUSED, True)


def in_place_of(path: Path, is_folder: bool) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.mkdir() if is_folder else path.write_bytes(b"of something else")


@pytest.mark.parametrize("name", ["LOCK", "log/marks", "log/running", "index/LOCK", "quarantine"])
def test_misplaced_files_that_make_a_start_fail_are_reported(data: Path, name: str) -> None:
    if name == "quarantine":
        flip(segment(data, 1), record_at(segment(data, 1)) + 60)
    in_place_of(data / name, is_folder=name != "quarantine")
    shown = command(data)
    assert shown.returncode == CheckResult.REFUSED
    assert f"misplaced: {data / name}: is a" in shown.stdout
    with pytest.raises(StoreError, match=re.escape(str(data / name))):
        MessageStore(small(data))
    in_place_of(data / name, is_folder=name == "quarantine")
    assert check_folder(data).verdict != CheckResult.REFUSED
    MessageStore(small(data)).close()


@pytest.mark.parametrize(
    "name", ["index", "index-checkpoint", "index.new", "log/sums", f"log/{0:020}.log.new", "quarantine"]
)
def test_misplaced_files_that_a_start_mends(data: Path, name: str) -> None:
    in_place_of(data / name, is_folder=name.startswith("log"))
    assert command(data).returncode in (CheckResult.INTACT, CheckResult.MENDS_ITSELF)
    MessageStore(small(data)).close()
    is_replaced_later = name == "index-checkpoint"  # with the next one
    assert check_folder(data).verdict == (CheckResult.MENDS_ITSELF if is_replaced_later else CheckResult.INTACT)


def test_check_of_an_unreadable_folder(tmp_path: Path) -> None:
    assert command(tmp_path).returncode == CheckResult.UNREADABLE
    assert command(tmp_path / "none").returncode == 2
    with pytest.raises(FolderUnusable):
        check_folder(tmp_path)


def test_the_command_as_json(data: Path) -> None:
    assert command(data).returncode == 0
    path = segment(data, 0)
    flip(path, record_at(path) + HEADER_BYTES)
    shown = command(data, "--json")
    said = json.loads(shown.stdout)
    assert (shown.returncode, said["exit_code"], said["verdict"]) == (1, 1, "loss")
    (damage,) = said["damage"]
    assert damage["kind"] == "damaged"
    assert damage["do"].startswith(f"penstock store repair {data} --from")
