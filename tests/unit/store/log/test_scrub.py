"""The scrubber finds what rots in sealed segments while the store runs, at a bounded rate, and changes nothing."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.mending.repairing import repair_folder
from lightqueue.message_store import MessageStore
from store.errors import DamageFound
from store.files.segment import HEADER_BYTES, Sealed
from store.files.sums import SUMS, State, read_sums
from store.log.scrub import Scrubber
from store.log.scrub_reading import BLOCK_BYTES, CHUNK_BYTES, ColdReader, Look
from store.recovery.salvage import Hole, salvage
from tests.support.stores import (
    Stores,
    commit_log,
    fill,
    flip,
    payloads,
    publish,
    put_another_record,
    small,
    wait_until,
)

SEGMENTS = 4


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", scrub_interval_s=1, verify_at_start_bytes=0)
    yield stores
    stores.close()


@pytest.fixture
def store(stores: Stores) -> MessageStore:
    store = stores()
    fill(store, SEGMENTS)
    wait_until(lambda: len(commit_log(store).sealed()) == SEGMENTS)
    return store


def scrubber_of(store: MessageStore, wait: Callable[[float], bool] = lambda _: False) -> Scrubber:
    """One without a thread, which need not wait."""
    scrubber = Scrubber(commit_log(store), store.settings, wait=wait)
    scrubber.load()
    return scrubber


def test_an_intact_log(store: MessageStore) -> None:
    scrubber = scrubber_of(store)
    assert scrubber.run_pass()
    assert scrubber.run_pass()
    sealed = commit_log(store).sealed()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": 0}
    assert scrubber.passes == 2
    assert scrubber.read_bytes == 2 * sum(each.end - each.base for each in sealed)
    sums = read_sums(commit_log(store).folder)
    assert sums is not None
    assert sums.identity == commit_log(store).marks.identity
    said = {each.base: (each.end, each.digest, each.state) for each in sums.entries.values()}
    digests = {each.base: hashlib.sha256(each.path.read_bytes()).digest() for each in sealed}
    assert said == {each.base: (each.end, digests[each.base], State.INTACT) for each in sealed}
    assert store.health() == ""


def test_a_flipped_bit_is_found_while_the_store_runs(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    segment = commit_log(store).sealed()[1]
    before = segment.path.read_bytes()
    flip(segment.path, 30_000)
    damaged = segment.path.read_bytes()
    store.log.scrubber.start()
    wait_until(lambda: store.log.scrubber.found_bytes()["damaged"] > 0)
    wait_until(lambda: store.log.scrubber.passes > 0)
    assert 5000 < store.log.scrubber.found_bytes()["damaged"] < 6000
    assert "scrubbing found" in store.health()
    assert "penstock store check" in store.health()
    error = next(each for each in caplog.records if each.levelname == "ERROR").getMessage()
    assert str(segment.path) in error
    assert "checksum mismatch" in error
    assert "penstock store repair" in error
    assert segment.path.read_bytes() == damaged
    segment.path.write_bytes(before)  # as a disk that misread once
    wait_until(lambda: store.health() == "", 20)


def test_the_next_start_quarantines_what_it_would_have_believed(store: MessageStore, stores: Stores) -> None:
    segment = commit_log(store).sealed()[0]
    flip(segment.path, 30_000)
    stores.stop(store)
    store = stores()
    assert not any(store.log.lost_bytes.values())  # it is old
    scrubber = scrubber_of(store)
    scrubber.run_pass()
    stores.stop(store)
    store = stores()
    assert store.log.lost_bytes["damaged"] == scrubber.found_bytes()["damaged"] > 0
    scrubber = scrubber_of(store)
    scrubber.run_pass()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": 0}
    stores.stop(store)
    report = check_folder(store.folder.path)
    assert (report.verdict, len(report.earlier)) == (CheckResult.INTACT, 1)


def test_a_start_that_refuses_damage_refuses_what_scrubbing_found(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    store = stores(on_damage="refuse")
    fill(store, 2)
    wait_until(lambda: len(commit_log(store).sealed()) == 2)
    flip(commit_log(store).sealed()[0].path, 30_000)
    scrubber_of(store).run_pass()
    assert "the next start refuses, as store.on_damage says" in caplog.text
    stores.stop(store)
    with pytest.raises(DamageFound, match="checksum mismatch"):
        stores(on_damage="refuse")


def test_a_repair_makes_its_sum_anew(store: MessageStore, stores: Stores, tmp_path: Path) -> None:
    scrubber_of(store).run_pass()
    segment = commit_log(store).sealed()[0]
    shutil.copytree(store.folder.path, tmp_path / "copy")
    whole = segment.path.read_bytes()
    flip(segment.path, 30_000)
    scrubber_of(store).run_pass()
    stores.stop(store)
    store = stores()  # the segment has a GAP record now
    scrubber = scrubber_of(store)
    scrubber.run_pass()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": 0}
    stores.stop(store)
    repair_folder(store.folder.path, copies=[tmp_path / "copy"])
    assert segment.path.read_bytes() == whole
    assert check_folder(store.folder.path).verdict == CheckResult.INTACT
    scrubber = scrubber_of(stores())
    scrubber.run_pass()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": 0}


def test_valid_records_that_are_others_are_found(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    scrubber = scrubber_of(store)
    scrubber.run_pass()
    segment = commit_log(store).sealed()[2]
    whole = segment.path.read_bytes()
    put_another_record(segment.path)
    assert scrubber.run_pass()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": segment.end - segment.base}
    assert "put it back from a backup" in caplog.text
    report = check_folder(store.folder.path)
    assert (report.in_use, report.verdict) == (True, CheckResult.LOSS)
    assert [(each.kind, each.file, each.start, each.end) for each in report.damage] == [
        ("changed", str(segment.path), segment.base, segment.end)
    ]
    segment.path.write_bytes(whole)
    assert check_folder(store.folder.path).verdict == CheckResult.INTACT
    scrubber.run_pass()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": 0}
    put_another_record(segment.path)
    (commit_log(store).folder / SUMS).unlink()  # take it as it is
    assert check_folder(store.folder.path).verdict == CheckResult.INTACT


def test_a_file_that_is_gone_cut_or_of_another_segment(store: MessageStore) -> None:
    first, second, third, _ = commit_log(store).sealed()
    first.path.unlink()
    os.truncate(second.path, 20)
    third.path.write_bytes(commit_log(store).sealed()[3].path.read_bytes())
    scrubber = scrubber_of(store)
    assert scrubber.run_pass()
    lost = [each.end - each.base for each in (first, second, third)]
    assert sum(lost) - 64 <= scrubber.found_bytes()["damaged"] <= sum(lost)


def test_scrubber_skips_segments_that_retention_drops_meanwhile(store: MessageStore) -> None:
    first = commit_log(store).sealed()[0]
    flip(first.path, 30_000)

    def drop(_: float) -> bool:
        if store.log.base == first.base:
            commit_log(store).pop_first().remove()
            commit_log(store).pop_first().remove()
        return False

    scrubber = scrubber_of(store, drop)
    assert scrubber.run_pass()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": 0}
    sums = read_sums(commit_log(store).folder)
    assert sums is not None
    assert list(sums.entries) == [each.base for each in commit_log(store).sealed()]
    commit_log(store).pop_first().remove()
    scrubber.run_pass()
    sums = read_sums(commit_log(store).folder)
    assert sums is not None
    assert list(sums.entries) == [each.base for each in commit_log(store).sealed()]


def test_the_rate_is_bounded(store: MessageStore) -> None:
    now_s = 1000.0
    read: list[tuple[float, int]] = []
    rate = 10_000

    def wait(seconds: float) -> bool:
        nonlocal now_s
        now_s += max(0.0, seconds)
        read.append((now_s - 1000.0, scrubber.read_bytes))
        return False

    settings = small(store.folder.path, scrub_bytes_per_s=rate)
    scrubber = Scrubber(commit_log(store), settings, clock=lambda: now_s, wait=wait)
    scrubber.run_pass()
    assert scrubber.read_bytes > 200_000
    assert all(size <= rate * passed_s + 1 for passed_s, size in read)


def test_scrubber_can_be_switched_off(stores: Stores) -> None:
    store = stores(scrub_bytes_per_s=0)
    fill(store, 1)
    store.log.scrubber.start()
    assert not commit_log(store).scrubber.is_on
    assert commit_log(store).scrubber._thread is None
    assert not (commit_log(store).folder / SUMS).exists()


def test_a_pass_goes_on_after_an_end(store: MessageStore) -> None:
    looked = 0

    def stop_after_two(_: float) -> bool:
        nonlocal looked
        looked += 1
        return looked > 2

    assert not scrubber_of(store, stop_after_two).run_pass()
    scrubber = scrubber_of(store)
    left = [each.base for each in commit_log(store).sealed() if scrubber._is_left(each)]
    assert left == [each.base for each in commit_log(store).sealed()[2:]]


def test_sums_of_another_log_do_not_count(store: MessageStore, stores: Stores, tmp_path: Path) -> None:
    other = stores(tmp_path / "other")
    fill(other, SEGMENTS)
    wait_until(lambda: len(commit_log(other).sealed()) == SEGMENTS)
    scrubber_of(other).run_pass()
    shutil.copy(commit_log(other).folder / SUMS, commit_log(store).folder / SUMS)
    scrubber = scrubber_of(store)
    scrubber.run_pass()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": 0}
    shutil.copy(commit_log(other).folder / SUMS, commit_log(store).folder / SUMS)
    assert check_folder(store.folder.path).verdict == CheckResult.INTACT


def injured(path: Path, source: random.Random) -> None:
    size = path.stat().st_size
    for _ in range(source.randint(1, 3)):
        at = source.randrange(size)
        if source.random() < 0.6:
            flip(path, at)
        else:
            with path.open("r+b") as file:
                file.seek(at & ~511)
                file.write(bytes(min(512 * source.randint(1, 9), size - (at & ~511))))


@pytest.mark.parametrize("large", [False, True], ids=["small records", "records over a chunk"])
def test_scrubber_finds_what_a_start_finds(tmp_path: Path, large: bool) -> None:
    store = MessageStore(small(tmp_path / "data", segment_bytes=8 << 20 if large else 256 << 10))
    source = random.Random(7)
    while len(commit_log(store).segments) < 2:
        publish(store, "t", source.randbytes(source.choice([3, 400, 2_500_000 if large else 9_000])))
    store.close()
    path = commit_log(store).segments[0].path
    whole = path.read_bytes()
    end = commit_log(store).segments[1].base
    for _ in range(15 if large else 60):
        path.write_bytes(whole)
        injured(path, source)
        reader = ColdReader(path)
        look = Look(reader, Sealed(path, 0, end), lambda _: True)
        assert look.run()
        found = salvage(reader.fd, 0, end, None)
        reader.close()
        expected = [*found.holes, *([Hole(found.end, end, "")] if found.end < end else [])]
        holes = [(hole.start, hole.end) for hole in look.holes if hole.start >= HEADER_BYTES]
        assert holes == [(hole.start, hole.end) for hole in expected]


def is_resident(path: Path, position: int, size: int) -> bool:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        return os.preadv(fd, [bytearray(size)], position, os.RWF_NOWAIT) == size
    except BlockingIOError:
        return False
    except OSError:
        pytest.skip("this file system does not say what is in the page cache")
    finally:
        os.close(fd)


def resident_after_a_read(path: Path) -> list[int]:
    """Positions of the blocks that are in the page cache; the sixth was before."""
    path.write_bytes(os.urandom(2 * CHUNK_BYTES))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(fd, BLOCK_BYTES, 5 * BLOCK_BYTES)
    os.close(fd)
    reader = ColdReader(path)
    found = reader.read(0, 2 * CHUNK_BYTES)
    reader.close()
    resident = [at for at in range(0, 2 * CHUNK_BYTES, BLOCK_BYTES) if is_resident(path, at, BLOCK_BYTES)]
    assert found == path.read_bytes()
    return resident


def test_the_page_cache_stays_as_it_was(tmp_path: Path) -> None:
    """The kernel may keep or drop a page for reasons of its own, on a busy machine; not each time."""
    assert any(resident_after_a_read(tmp_path / str(number)) == [5 * BLOCK_BYTES] for number in range(10))


def test_sums_that_cannot_be_read_are_taken_again(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    (commit_log(store).folder / SUMS).write_bytes(b"PENSSUMS and noise" * 9)
    assert scrubber_of(store).run_pass()
    assert "cannot be read; the sums of all segments are computed again" in caplog.text
    sums = read_sums(commit_log(store).folder)
    assert sums is not None
    assert len(sums.entries) == SEGMENTS


def test_sums_that_cannot_be_written_do_not_end_it(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    (commit_log(store).folder / f"{SUMS}.new").mkdir()
    flip(commit_log(store).sealed()[0].path, 30_000)
    scrubber = scrubber_of(store)
    assert scrubber.run_pass()
    assert scrubber.found_bytes()["damaged"] > 0
    assert caplog.text.count("scrubbing goes on") == 1
    (commit_log(store).folder / f"{SUMS}.new").rmdir()
    assert scrubber.run_pass()
    assert read_sums(commit_log(store).folder) is not None


@pytest.mark.parametrize("copy_is", ["as it was", "older and longer", "changed as well"])
def test_a_repair_puts_back_what_was_there(store: MessageStore, stores: Stores, tmp_path: Path, copy_is: str) -> None:
    """From a copy that has the file with its sum; any other copy does not count."""
    scrubber_of(store).run_pass()
    segment = commit_log(store).sealed()[2]
    stores.stop(store)
    data = store.folder.path
    shutil.copytree(data, tmp_path / "copy")
    whole = segment.path.read_bytes()
    put_another_record(segment.path)
    copied = tmp_path / "copy" / "log" / segment.path.name
    if copy_is == "older and longer":  # it was the newest one then: zeros behind its records
        with copied.open("ab") as file:
            file.write(bytes(4096))
    elif copy_is == "changed as well":
        put_another_record(copied)
    report = repair_folder(data, copies=[tmp_path / "copy"])
    if copy_is == "changed as well":
        assert [each.path for each in report.repaired.changed] == [segment.path]
        assert check_folder(data).verdict == CheckResult.LOSS
        return
    assert (report.repaired.changed, report.repaired.records) == ([], 1)
    assert segment.path.read_bytes() == whole
    assert (data / "repair-undo" / segment.path.name).read_bytes() != whole
    assert check_folder(data).verdict == CheckResult.INTACT
    scrubber = scrubber_of(stores())
    scrubber.run_pass()
    assert scrubber.found_bytes() == {"damaged": 0, "changed": 0}


@pytest.mark.parametrize("injured", [0, 1, SEGMENTS - 1])
def test_rot_that_no_scrubbing_has_noted_is_put_aside_where_a_start_reads_it(
    stores: Stores, store: MessageStore, injured: int
) -> None:
    """The index is gone, so a start reads old segments as well, which it does not verify."""
    publish(store, "kept", b"1", b"2")
    folder = commit_log(store).folder
    segment = commit_log(store).sealed()[injured]
    stores.close()
    shutil.rmtree(folder.parent / "index")
    flip(folder / f"{segment.base:020}.log", 30_000)
    store = stores()
    (finding,) = commit_log(store).findings
    assert finding.start - HEADER_BYTES <= segment.base + 30_000 <= finding.end
    assert payloads(store, "kept") == [b"1", b"2"]
    assert len(list((folder.parent / "quarantine").glob("*.json"))) == 1
