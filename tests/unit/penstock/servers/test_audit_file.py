"""The audit log: what becomes one line, what a flood comes to, and a file that rotates, fails and recovers."""

import json
import logging
import os
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.config.audit_settings import AuditSettings
from penstock.errors import PenstockError
from penstock.servers.audit_file import MOST_WINDOWS, AuditFile, line_of
from store.audit import (
    LINES_OF_A_SOURCE,
    LINES_OF_ALL,
    MOST_KEYS,
    MOST_MERGED,
    OTHERS,
    Audit,
    AuditEvent,
    AuditKey,
    Tally,
    host_of,
    network_of,
)

TIMEOUT_S = 20


class Kept:
    """A sink that a test looks into."""

    lost = 0

    def __init__(self) -> None:
        self.windows: list[Mapping[AuditKey, Tally]] = []

    def take(self, window: Mapping[AuditKey, Tally]) -> None:
        self.windows.append(window)


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def audit(kept: Kept, clock: Clock) -> Audit:
    return Audit(kept, 1.0, clock)


# --- windows


def test_equal_events_of_a_window_are_one_line_with_a_count(audit: Audit, kept: Kept, clock: Clock) -> None:
    for port in range(3):
        audit.note(AuditEvent.REFUSED, user="a", client_id="c", address=f"192.0.2.1:{port}", reason="no")
        clock.now_s += 0.25
    audit.close_window()
    assert kept.windows == [], "the window is open"
    clock.now_s += 0.25
    audit.close_window()
    ((key, tally),) = kept.windows[0].items()
    assert key == (AuditEvent.REFUSED, "a", "c", "192.0.2.1", "no")
    assert (tally.count, tally.first_ms, tally.last_ms) == (3, 1_000_000, 1_000_500)


def test_audit_lines_differ_by_user_reason_client_and_address(audit: Audit, kept: Kept) -> None:
    for fields in ({"user": "b"}, {"client_id": "b"}, {"address": "b"}, {"reason": "b"}, {}):
        audit.note(AuditEvent.CONNECTED, **{"user": "a", "client_id": "a", "address": "a", "reason": "a"} | fields)
    audit.close()
    assert len(kept.windows[0]) == 5


def test_audit_without_a_sink_keeps_nothing() -> None:
    audit = Audit()
    audit.note(AuditEvent.CONNECTED, user="a")
    audit.close_window()
    audit.close()
    assert audit.lost == 0
    assert not audit.noted.total()


# --- floods


def test_random_names_of_one_address_become_few_lines_that_count_all(audit: Audit, kept: Kept) -> None:
    for number in range(5_000):
        audit.note(AuditEvent.REFUSED, user=f"u{number}", address="192.0.2.1:1", reason=f"r{number}")
    audit.note(AuditEvent.REFUSED, user="another", address="192.0.2.2:1", reason="r")
    audit.close()
    window = kept.windows[0]
    assert len(window) == LINES_OF_A_SOURCE + 2
    assert sum(tally.count for tally in window.values()) == 5_001
    assert window[AuditKey(AuditEvent.REFUSED, "", "", "192.0.2.1", OTHERS)].count == 5_000 - LINES_OF_A_SOURCE
    assert any(key.user == "another" for key in window), "one address hides no other"


def test_random_addresses_become_few_lines_that_count_all(audit: Audit, kept: Kept) -> None:
    for number in range(200_000):
        host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        audit.note(AuditEvent.REFUSED, user=f"u{number}", address=f"{host}:1", reason="no")
    audit.close()
    window = kept.windows[0]
    assert len(window) <= LINES_OF_ALL + 2 * MOST_MERGED + 1
    assert sum(tally.count for tally in window.values()) == 200_000
    assert any(key.address.endswith("/24") for key in window)
    assert AuditKey(AuditEvent.REFUSED, "", "", "*", OTHERS) in window


def test_a_client_that_tries_every_topic_hides_no_other(audit: Audit, kept: Kept) -> None:
    for number in range(1_000):
        audit.note(AuditEvent.DENIED, user="u", client_id="noisy", address="192.0.2.1:1", reason=f"publish to {number}")
    audit.note(AuditEvent.DENIED, user="u", client_id="other", address="192.0.2.1:1", reason="publish to x")
    audit.close()
    window = kept.windows[0]
    assert window[AuditKey(AuditEvent.DENIED, "u", "noisy", "192.0.2.1", OTHERS)].count == 1_000 - LINES_OF_A_SOURCE
    assert any(key.client_id == "other" for key in window)


def test_audit_has_a_line_for_each_connected_client(audit: Audit, kept: Kept) -> None:
    for number in range(MOST_KEYS):
        audit.note(AuditEvent.CONNECTED, client_id=f"c{number}", address="192.0.2.1:1")
    audit.note(AuditEvent.CONNECTED, client_id="one more", address="192.0.2.1:1")
    audit.close()
    assert len(kept.windows[0]) == MOST_KEYS + 1
    assert kept.windows[0][AuditKey(AuditEvent.CONNECTED, "", "", "192.0.2.1", OTHERS)].count == 1


def test_the_next_window_begins_anew(audit: Audit, kept: Kept) -> None:
    for _ in range(2):
        for number in range(100):
            audit.note(AuditEvent.REFUSED, user=f"u{number}", address="192.0.2.1:1")
        audit.close()
    assert [len(window) for window in kept.windows] == [LINES_OF_A_SOURCE + 1] * 2


@pytest.mark.parametrize(
    ("address", "host", "network"),
    [
        ("192.0.2.7:1883", "192.0.2.7", "192.0.2.0/24"),
        ("[2001:db8::1]:1883", "2001:db8::1", "2001:db8::/64"),
        ("2001:db8::1", "2001:db8::1", "2001:db8::/64"),
        ("unix", "unix", "unix"),
        ("", "", ""),
        ("a:b", "a:b", "a:b"),
    ],
)
def test_hosts_and_networks(address: str, host: str, network: str) -> None:
    assert host_of(address) == host
    assert network_of(host) == network


# --- lines


HOSTILE = 'a"\n{"event":"operator"}\r\u2028\x85\x7f\x00\\\ud800'


def test_no_name_can_forge_a_line() -> None:
    key = AuditKey(AuditEvent.REFUSED, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    line = line_of(key, Tally(0, 0, "", 1))
    assert len(line.splitlines()) == 1
    assert line.isprintable() or line[:-1].isprintable()
    assert [json.loads(line)[name] for name in ("user", "client_id", "address", "reason")] == [HOSTILE] * 4


def test_a_line_has_the_port_of_one_event_and_the_times_of_many() -> None:
    key = AuditKey(AuditEvent.CONNECTED, "u", "", "192.0.2.1", "")
    assert json.loads(line_of(key, Tally(0, 0, "192.0.2.1:5", 1)))["address"] == "192.0.2.1:5"
    assert json.loads(line_of(key, Tally(1_000, 61_500, "192.0.2.1:5", 2))) == {
        "time": "1970-01-01T00:01:01.500+00:00",
        "event": "connected",
        "user": "u",
        "address": "192.0.2.1",
        "count": 2,
        "first": "1970-01-01T00:00:01.000+00:00",
        "last": "1970-01-01T00:01:01.500+00:00",
    }


# --- the file


def window(number: int, reason: str = "") -> Mapping[AuditKey, Tally]:
    return {AuditKey(AuditEvent.REFUSED, f"u{number}", "", "", reason): Tally(0, 0, "", 1)}


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def users_in(path: Path) -> list[str]:
    return [line.get("user", line["event"]) for line in lines_in(path)]


def wait_for(path: Path, users: list[str]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not path.exists() or users_in(path) != users:
        assert time.monotonic() < deadline_s, users_in(path)
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def open_files() -> Iterator[list[AuditFile]]:
    files: list[AuditFile] = []
    yield files
    for each in files:
        each.close()


def test_only_its_owner_reads_it(path: Path) -> None:
    AuditFile(path, AuditSettings()).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_audit_file_goes_on_after_a_torn_line(path: Path) -> None:
    path.write_text('{"user": "old"}\n{"us')
    file = AuditFile(path, AuditSettings())
    file.take(window(1))
    file.close()
    assert path.read_text().splitlines()[:2] == ['{"user": "old"}', '{"us']
    assert json.loads(path.read_text().splitlines()[2])["user"] == "u1"


def test_audit_file_rotates_by_size_and_keeps_a_number_of_files(path: Path) -> None:
    file = AuditFile(path, AuditSettings(max_file_bytes=4_096, files=3))
    for number in range(10):
        file.take(window(number, "x" * 2_000))
    file.close()
    assert sorted(each.name for each in path.parent.iterdir()) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert users_in(path) == ["u8", "u9"]
    assert users_in(path.with_name("audit.jsonl.2")) == ["u4", "u5"]


def test_audit_file_is_opened_again_after_another_program_moved_it(path: Path, open_files: list[AuditFile]) -> None:
    file = AuditFile(path, AuditSettings())
    open_files.append(file)
    file.take(window(1))
    wait_for(path, ["u1"])
    path.rename(path.with_name("moved"))
    file.take(window(2))
    wait_for(path.with_name("moved"), ["u1", "u2"])
    file.reopen()
    file.take(window(3))
    wait_for(path, ["u3"])


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"cannot be written .*audit\.file"):
        AuditFile(tmp_path / "nowhere" / "audit.jsonl", AuditSettings())


def test_a_full_disk_is_counted_said_once_and_told_in_the_file_later(
    path: Path, open_files: list[AuditFile], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real ENOSPC: /dev/full in place of the file."""
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    path.symlink_to("/dev/full")
    file = AuditFile(path, AuditSettings())
    open_files.append(file)
    for number in range(5):
        file.take(window(number))
    deadline_s = time.monotonic() + TIMEOUT_S
    while file.lost < 5:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1
    assert "No space left on device" in said[0]
    path.unlink()
    file.reopen()
    file.take(window(9))
    wait_for(path, ["lost", "u9"])
    assert lines_in(path)[0]["count"] == 5


def test_a_disk_that_hangs_costs_so_much_memory_and_no_time(path: Path) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = AuditFile(path, AuditSettings())
    try:
        file.take(window(0, "x" * (1 << 20)))  # more than a pipe takes
        deadline_s = time.monotonic() + TIMEOUT_S
        while file._tasks.qsize():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        for number in range(MOST_WINDOWS + 3):
            file.take(window(number))
        assert file.lost == 3
    finally:
        os.close(reader)
        file.close()


def test_an_event_costs_the_loop_microseconds(audit: Audit) -> None:
    """Linear, and far below what would be felt: 100,000 refusals with random names."""
    before_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for number in range(100_000):
        audit.note(AuditEvent.REFUSED, user=f"u{number}", address=f"10.0.{number & 255}.1:1", reason="no")
    took_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before_s
    print(f"{took_s * 10:.1f} µs an event")
    assert took_s < 10
