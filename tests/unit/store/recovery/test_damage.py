"""Injuries to a log's files: everything intact is served, every injury is named, and no log_offset is used twice."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from store.errors import DamageFound, UnknownFormat
from store.files.marks import MARKS
from store.files.segment import HEADER_BYTES, segment_header, segment_path, segment_paths
from store.log.commitlog import CommitLog
from store.records._records import LogMemory, crc32c
from store.records.records import RecordType, read_records
from store.recovery.quarantine import Finding, Quarantine
from tests.support.kills import Killed, kill_at
from tests.support.stores import SEGMENT_BYTES, batch_of, flip, small

Ledger = dict[int, bytes]  # the payload of each record that was appended, by its log_offset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


class Logs:
    """Opens the log in a folder; what is open is closed in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: CommitLog | None = None

    def open(self, **settings: Any) -> CommitLog:
        self.close()
        self.log = CommitLog(self.folder, small(self.folder, **settings), quarantine=self.folder.parent / "quarantine")
        return self.log

    def close(self) -> None:
        if self.log is not None:
            log, self.log = self.log, None
            log.close()


@pytest.fixture
def logs(folder: Path) -> Iterator[Logs]:
    logs = Logs(folder)
    yield logs
    logs.close()


def fill(log: CommitLog, number: int = 200, seed: int = 1) -> Ledger:
    randomly = random.Random(seed)
    ledger: Ledger = {}
    while len(ledger) < number:
        batch = batch_of()
        payloads = [randomly.randbytes(randomly.randint(0, 3000)) for _ in range(randomly.randint(1, 8))]
        is_atomic = randomly.random() < 0.3
        if is_atomic:
            batch.begin_atomic()
        for payload in payloads:
            batch.append(RecordType.MESSAGE, payload, topic=b"t")
        if is_atomic:
            batch.end_atomic()
        at = log.append(batch) + (40 if is_atomic else 0)
        for payload in payloads:
            ledger[at] = payload
            at += (40 + 1 + len(payload) + 7) & ~7
    return ledger


def served(log: CommitLog) -> Ledger:
    """What can be read, the one way and the other."""
    found = {
        record.log_offset: record.payload
        for _, data in log.ranges(0, 1 << 30)
        for record in list(read_records(data))
        if record.type == RecordType.MESSAGE
    }
    assert all(log.record(log_offset).payload == payload for log_offset, payload in found.items())
    return found


def told(log: CommitLog) -> list[Finding]:
    """What was found, which stands in the quarantine too."""
    kept = set(Quarantine(log.folder.parent / "quarantine").findings())
    assert {finding for finding in log.findings if finding.end > finding.start and finding.kind != "missing"} <= kept
    return log.findings


def check(log: CommitLog, ledger: Ledger) -> set[int]:
    """Whatever is served is what was appended, and all else lies in a loss that is told. Returns what is lost."""
    found = served(log)
    told(log)
    losses = [finding for finding in log.quarantine.findings() if finding.is_loss]
    assert found.items() <= ledger.items()
    lost = ledger.keys() - found.keys()
    for log_offset in lost:
        assert any(loss.start <= log_offset < loss.end for loss in losses), log_offset
    for log_offset in lost:
        with pytest.raises(LookupError):
            log.record(log_offset)
    return set(lost)


def zero(path: Path, position: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(size))


def goes_on(logs: Logs, ledger: Ledger, lost: set[int]) -> None:
    """New records come behind all old ones, and the next start finds nothing more."""
    log = logs.open()
    assert log.findings == []
    more = fill(log, 20, seed=2)
    assert min(more) > max(ledger)
    again = logs.open()
    assert again.findings == []
    assert served(again) == {at: payload for at, payload in (ledger | more).items() if at not in lost}


# --- one injury each


def test_a_flipped_byte_costs_one_record_of_the_newest_segment(logs: Logs) -> None:
    ledger = fill(logs.open())
    logs.close()
    path = segment_paths(logs.folder)[-1]
    first = min(at for at in ledger if at > int(path.stem))
    flip(path, first - int(path.stem) + 44)
    assert check(logs.open(), ledger) == {first}
    assert [finding.kind for finding in told(logs.open())] == []
    goes_on(logs, ledger, {first})


def test_a_flipped_byte_in_a_length_costs_one_record(logs: Logs) -> None:
    ledger = fill(logs.open())
    logs.close()
    path = segment_paths(logs.folder)[1]
    first = [at for at in ledger if at > int(path.stem)][3]
    flip(path, first - int(path.stem) + 1)
    lost = check(logs.open(), ledger)
    assert lost == {first}
    goes_on(logs, ledger, lost)


def test_forged_record_in_a_damaged_payload_is_not_served(logs: Logs) -> None:
    log = logs.open()
    at = log.end
    forged = batch_of(b"forged")
    inner_at = at + 40 + 1 + 7  # the topic is one byte long; the payload begins at a multiple of 8 behind seven bytes
    scratch = logs.folder.parent / "scratch"
    with scratch.open("w+b") as file:
        LogMemory(1).write_batch(forged, file.fileno(), inner_at, 1, inner_at)
    log.append(batch_of(bytes(7) + scratch.read_bytes()))
    behind = log.append(batch_of(b"behind"))
    logs.close()
    flip(segment_paths(logs.folder)[0], at + 42)
    assert served(logs.open()) == {behind: b"behind"}


@pytest.mark.parametrize("seed", range(30))
def test_a_stray_file_anywhere_takes_nothing(logs: Logs, seed: int) -> None:
    """Empty, zeros, junk, or a header alone, as a failed roll of an earlier version left it."""
    randomly = random.Random(seed)
    log = logs.open()
    ledger, end, identity = fill(log), log.end, log.marks.identity
    logs.close()
    paths = segment_paths(logs.folder)
    for _ in range(randomly.randint(1, 3)):
        stray = segment_path(logs.folder, randomly.randrange(end) & ~7)
        if stray not in paths:
            header = segment_header(int(stray.stem), identity, 1)
            stray.write_bytes(randomly.choice((b"", bytes(9_000), b"junk" * 999, header, header + bytes(9_000))))
    strays = set(segment_paths(logs.folder)) - set(paths)
    assert check(logs.open(), ledger) == set()
    assert not strays & set(segment_paths(logs.folder))
    kept = {path.stem.partition("-")[0] for path in (logs.folder.parent / "quarantine").glob("*.json")}
    assert {stray.stem for stray in strays} == kept
    goes_on(logs, ledger, set())


def test_the_file_with_more_records_counts_and_the_others_are_kept(logs: Logs) -> None:
    log = logs.open()
    ledger = fill(log)
    logs.close()
    first, second = segment_paths(logs.folder)[:2]
    again = second.read_bytes()[HEADER_BYTES:4_000]
    with first.open("ab") as file:
        file.write(bytes(HEADER_BYTES) + again)
    assert check(logs.open(), ledger) == set()
    (finding,) = Quarantine(logs.folder.parent / "quarantine").findings()
    assert (finding.kind, finding.start) == ("foreign", int(second.stem))
    (kept,) = (logs.folder.parent / "quarantine").glob("*.bytes")
    assert kept.read_bytes() == bytes(HEADER_BYTES) + again
    goes_on(logs, ledger, set())


@pytest.mark.parametrize("missing", [8, 16, 32])
def test_a_hole_that_is_smaller_than_a_record(logs: Logs, missing: int) -> None:
    """It cannot be filled alone, so the record before it is lost with it."""
    log = logs.open()
    ledger = fill(log)
    logs.close()
    path = segment_paths(logs.folder)[1]
    base, end = int(path.stem), int(segment_paths(logs.folder)[2].stem)
    last = max(at for at in ledger if at < end and len(ledger[at]) > 100)
    behind = {at for at in ledger if last < at < end}
    payload = bytes(end - last - missing - 40 - 1)
    with path.open("r+b") as file:
        LogMemory(1).write_batch(batch_of(payload), file.fileno(), last, 1, base)
        os.truncate(path, end - base - missing)
    assert check(logs.open(), ledger) >= behind | {last}
    goes_on(logs, ledger, behind | {last})


def test_a_zeroed_header_loses_nothing(logs: Logs) -> None:
    ledger = fill(logs.open())
    logs.close()
    for path in (segment_paths(logs.folder)[0], segment_paths(logs.folder)[-1]):
        zero(path, 0, HEADER_BYTES)
    log = logs.open()
    assert check(log, ledger) == set()
    assert [finding.kind for finding in told(log)] == ["mended", "mended"]
    goes_on(logs, ledger, set())


def test_a_zeroed_sector_costs_what_was_in_it(logs: Logs) -> None:
    ledger = fill(logs.open())
    logs.close()
    path = segment_paths(logs.folder)[2]
    zero(path, 1024, 4096)
    lost = check(logs.open(), ledger)
    assert 0 < len(lost) < 10
    goes_on(logs, ledger, lost)


@pytest.mark.parametrize("which", [0, 1, 2, -1])
def test_a_deleted_segment_is_told_of(logs: Logs, which: int) -> None:
    ledger = fill(logs.open())
    logs.close()
    paths = segment_paths(logs.folder)
    bases = [int(path.stem) for path in paths] + [1 << 40]
    paths[which].unlink()
    number = which % len(paths)
    lost = check(logs.open(), ledger)
    assert lost == {at for at in ledger if bases[number] <= at < bases[number + 1]}
    goes_on(logs, ledger, lost)


def test_all_segments_deleted(logs: Logs) -> None:
    ledger = fill(logs.open())
    logs.close()
    for path in segment_paths(logs.folder):
        path.unlink()
    assert check(logs.open(), ledger) == set(ledger)
    goes_on(logs, ledger, set(ledger))


@pytest.mark.parametrize("size", [0, 10, 64, 1000, 20_000])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_segment_that_is_cut_off(logs: Logs, which: int, size: int) -> None:
    ledger = fill(logs.open())
    logs.close()
    path = segment_paths(logs.folder)[which]
    os.truncate(path, size)
    lost = check(logs.open(), ledger)
    base = int(path.stem)
    assert all(base <= at < base + SEGMENT_BYTES for at in lost)
    assert not any(base <= at < base + size - 4000 for at in lost)
    goes_on(logs, ledger, lost)


def test_swapped_segments_go_back(logs: Logs) -> None:
    ledger = fill(logs.open())
    logs.close()
    one, other = segment_paths(logs.folder)[1:3]
    one.rename(logs.folder / "x")
    other.rename(one)
    (logs.folder / "x").rename(other)
    assert check(logs.open(), ledger) == set()
    goes_on(logs, ledger, set())


def test_a_doubled_segment_is_put_aside(logs: Logs) -> None:
    ledger = fill(logs.open())
    logs.close()
    paths = segment_paths(logs.folder)
    shutil.copy(paths[0], logs.folder / f"{int(paths[1].stem) + 8:020}.log")
    log = logs.open()
    assert check(log, ledger) == set()
    assert [finding.kind for finding in told(log)] == ["foreign"]
    goes_on(logs, ledger, set())


def test_a_segment_of_another_log_is_put_aside(logs: Logs, tmp_path: Path) -> None:
    ledger = fill(logs.open())
    (tmp_path / "other" / "log").mkdir(parents=True)
    other = Logs(tmp_path / "other" / "log")
    fill(other.open(), 300, seed=3)
    other.close()
    logs.close()
    path = segment_paths(logs.folder)[0]
    shutil.copy(segment_paths(other.folder)[0], path)
    log = logs.open()
    lost = check(log, ledger)
    assert lost == {at for at in ledger if at < int(segment_paths(logs.folder)[0].stem)}
    assert {finding.kind for finding in told(log)} == {"foreign", "missing"}
    goes_on(logs, ledger, lost)


@pytest.mark.parametrize("injury", ["deleted", "zeroed", "of another log"])
def test_marks_that_are_gone(logs: Logs, tmp_path: Path, injury: str) -> None:
    ledger = fill(logs.open())
    logs.close()
    marks = logs.folder / MARKS
    if injury == "deleted":
        marks.unlink()
    elif injury == "zeroed":
        zero(marks, 0, marks.stat().st_size)
    else:
        (tmp_path / "other" / "log").mkdir(parents=True)
        other = Logs(tmp_path / "other" / "log")
        other.open()
        other.close()
        shutil.copy(other.folder / MARKS, marks)
    flip(segment_paths(logs.folder)[1], 5000)
    log = logs.open()
    assert len(check(log, ledger)) == 1
    assert "mended" in {finding.kind for finding in told(log)}
    identity = log.marks.identity
    logs.close()
    assert identity in segment_paths(logs.folder)[0].read_bytes()[:HEADER_BYTES]


def test_a_newer_format_is_refused_and_left_alone(logs: Logs) -> None:
    fill(logs.open())
    logs.close()
    path = segment_paths(logs.folder)[1]
    header = bytearray(segment_header(int(path.stem), bytes(16), 0))
    header[8] = 2
    header[60:] = crc32c(header[:60]).to_bytes(4, "little")
    with path.open("r+b") as file:
        file.write(header)
    before = {each.name: each.read_bytes() for each in segment_paths(logs.folder)}
    with pytest.raises(UnknownFormat, match="version 2; this program reads version 1"):
        logs.open()
    assert {each.name: each.read_bytes() for each in segment_paths(logs.folder)} == before


def test_refuse_changes_nothing_and_names_the_damage(logs: Logs) -> None:
    fill(logs.open())
    logs.close()
    path = segment_paths(logs.folder)[1]
    flip(path, 5000)
    before = path.read_bytes()
    with pytest.raises(DamageFound, match=f"segment {path.stem}, log_offset .*checksum mismatch"):
        logs.open(on_damage="refuse")
    assert path.read_bytes() == before
    assert not (logs.folder.parent / "quarantine").exists()


# --- the end of the log


def as_after_power_cut(logs: Logs, tmp_path: Path) -> tuple[Ledger, Ledger, int]:
    """(confirmed, appended since, log_offset of what was confirmed) of a log in use that lost its process."""
    log = logs.open(flush_interval_ms=1_000_000, flush_deadline_ms=1_000_000)
    confirmed = fill(log, 50)
    log.flusher.flush_now()
    flushed = log.end
    since = fill(log, 10, seed=5)
    copy = tmp_path / "copy" / "log"
    shutil.copytree(logs.folder, copy)
    logs.close()
    logs.folder = copy
    return confirmed, since, flushed


def test_a_torn_end_is_cut_and_kept(logs: Logs, tmp_path: Path) -> None:
    confirmed, since, _ = as_after_power_cut(logs, tmp_path)
    path, last = segment_paths(logs.folder)[-1], max(since)
    flip(path, last - int(path.stem) + 42)
    log = logs.open()
    torn = [finding for finding in told(log) if finding.kind == "torn"]
    assert len(torn) == 1
    assert torn[0].start <= last < torn[0].end
    assert served(log).keys() >= confirmed.keys()
    assert log.end == torn[0].start


def test_behind_what_was_confirmed_nothing_is_served_past_a_fault(logs: Logs, tmp_path: Path) -> None:
    confirmed, since, flushed = as_after_power_cut(logs, tmp_path)
    path = segment_paths(logs.folder)[-1]
    if flushed > int(path.stem):
        zero(path, flushed - int(path.stem), 512)
    log = logs.open()
    lost = check(log, confirmed | since)
    assert lost == since.keys()
    assert {finding.kind for finding in told(log)} == {"unconfirmed"}
    goes_on(logs, confirmed | since, lost)


def test_a_power_cut_at_a_segments_end(logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new segment's header came to the disk, the end of the one before it did not."""
    log = logs.open(flush_interval_ms=1_000_000, flush_deadline_ms=1_000_000)
    monkeypatch.setattr(log.flusher, "rolled", lambda active_fd: None)
    confirmed = fill(log, 20)
    log.flusher.flush_now()
    segments = len(log.segments)
    since: Ledger = {}
    while len(log.segments) == segments:
        since |= {log.append(batch_of(b"x" * 3000)): b"x" * 3000}
    copy = tmp_path / "copy" / "log"
    shutil.copytree(logs.folder, copy)
    logs.close()
    logs.folder = copy
    sealed, last = segment_paths(copy)[-2:]
    zero(sealed, max(since.keys() - {max(since)}) - int(sealed.stem), 512)
    zero(last, HEADER_BYTES, last.stat().st_size - HEADER_BYTES)
    log = logs.open()
    assert served(log).keys() >= confirmed.keys()
    assert {finding.kind for finding in told(log)} == {"torn"}
    more = fill(log, 40, seed=9)
    again = logs.open()
    assert served(again).items() >= (confirmed | more).items()


# --- many, by chance


INJURIES: list[Callable[[random.Random, Path], None]] = [
    lambda randomly, path: flip(path, randomly.randrange(path.stat().st_size)),
    lambda randomly, path: zero(path, randomly.randrange(path.stat().st_size) & ~511, 512),
    lambda randomly, path: zero(path, randomly.randrange(path.stat().st_size) & ~4095, 4096),
    lambda randomly, path: os.truncate(path, randomly.randrange(path.stat().st_size)),
    lambda randomly, path: path.unlink(),
]


@pytest.mark.parametrize("seed", range(100))
def test_by_chance(logs: Logs, seed: int) -> None:
    randomly = random.Random(seed)
    ledger = fill(logs.open(), 120, seed)
    logs.close()
    for _ in range(randomly.randint(1, 3)):
        path = randomly.choice([path for path in segment_paths(logs.folder) if path.stat().st_size])
        randomly.choice(INJURIES)(randomly, path)
    log = logs.open()
    lost = check(log, ledger)
    goes_on(logs, ledger, lost)


# --- a kill in the middle of it


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_every_step_of_a_recovery(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    randomly = random.Random(seed)
    ledger = fill(logs.open(), 150, seed)
    logs.close()
    paths = segment_paths(logs.folder)
    flip(paths[0], randomly.randrange(2000, 40_000))
    paths[1].unlink()
    zero(paths[-1], 0, 512)
    injured = tmp_path / "injured"
    shutil.copytree(logs.folder, injured)
    lost: set[int] | None = None
    step = 0
    while True:
        shutil.rmtree(logs.folder)
        shutil.rmtree(tmp_path / "quarantine", ignore_errors=True)
        shutil.copytree(injured, logs.folder)
        with monkeypatch.context() as patched:
            kill_at(patched, step)
            with suppress(Killed):
                logs.open()
                break
        found = check(logs.open(), ledger)
        lost = found if lost is None else lost
        assert found == lost, step
        goes_on(logs, ledger, lost)
        logs.close()
        step += 1
    assert step > 20
