"""Clocks that are set while a store runs: what ends by them waits for the time to pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from store.log.clock import MOST_JUMPS, Clock
from store.records._records import RecordBatch
from store.state.changes import SessionClosed, SessionOpened, encode_change
from tests.support.stores import small

HALF_AN_HOUR_S = 1_800.0


class Times:
    """The wall clock, which can be set, and how much time has passed."""

    def __init__(self) -> None:
        self.wall_s, self.passed_s = 1e9, 50.0
        self.clock = Clock(60, lambda: self.wall_s, lambda: self.passed_s)

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.passed_s += seconds


@pytest.fixture
def times() -> Times:
    return Times()


def test_time_that_passes_and_small_corrections_are_taken_as_they_are(times: Times) -> None:
    for _ in range(100):
        times.pass_s(3_600)
        times.wall_s += 59
        assert times.clock.now_s() == times.wall_s
    assert times.clock.jumps == 0


@pytest.mark.parametrize("jump_s", [HALF_AN_HOUR_S, -HALF_AN_HOUR_S])
def test_a_jump_is_told_and_left_out(times: Times, jump_s: float, caplog: pytest.LogCaptureFixture) -> None:
    began_s = times.clock.now_s()
    times.wall_s += jump_s
    with caplog.at_level(logging.WARNING, "penstock.store"):
        assert times.clock.now_s() == began_s
        times.pass_s(10)
        assert times.clock.now_s() == began_s + 10
    assert times.clock.jumps == 1
    assert ("set ahead by 1800 s" if jump_s > 0 else "set back by 1800 s") in caplog.text
    assert len(caplog.records) == 1
    assert times.clock.without_jumps(times.wall_s) == times.clock.now_s()  # what is stamped since


def test_times_before_and_after_a_clock_jump(times: Times) -> None:
    before_s = times.wall_s
    times.pass_s(100)
    times.wall_s += HALF_AN_HOUR_S
    times.clock.now_s()
    assert times.clock.without_jumps(before_s) == before_s
    assert times.clock.without_jumps(times.wall_s) == before_s + 100


def test_a_clock_that_is_set_right_again(times: Times) -> None:
    began_s = times.clock.now_s()
    times.wall_s += HALF_AN_HOUR_S
    times.clock.now_s()
    times.pass_s(100)
    times.wall_s -= HALF_AN_HOUR_S
    assert times.clock.now_s() == times.wall_s == began_s + 100
    assert times.clock.without_jumps(times.wall_s) == times.wall_s


def test_endless_jumps_are_bounded(times: Times) -> None:
    for number in range(2 * MOST_JUMPS):
        times.wall_s += 100
        assert times.clock.now_s() == pytest.approx(1e9)
        assert times.clock.jumps == number + 1
    assert len(times.clock._since_s) <= MOST_JUMPS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = MessageStore(small(tmp_path))
    store.absent.begin()
    yield store
    store.close()


def leave(store: MessageStore, client_id: str, expiry_s: int) -> None:
    batch = RecordBatch()
    batch.append(*encode_change(SessionOpened(client_id, False, expiry_s)))
    batch.append(*encode_change(SessionClosed(client_id, expiry_s, keep_will=False)))
    store.append(batch)


def test_a_session_ends_when_its_time_has_passed_and_not_when_the_clock_is_set(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(store, "device", 120)
    clock, set_s, passed_s = store.clock, 0.0, 0.0
    wall, passed = clock._wall, clock._passed
    monkeypatch.setattr(clock, "_wall", lambda: wall() + set_s + passed_s)
    monkeypatch.setattr(clock, "_passed", lambda: passed() + passed_s)
    set_s = HALF_AN_HOUR_S
    store.tick()
    store.tick()
    assert clock.jumps == 1
    assert store.sessions.get("device") is not None
    assert store.absent.claim("device", clean_start=False) is not None
    store.absent.look_at("device")
    passed_s = 121.0
    store.tick()
    assert store.sessions.get("device") is None
    assert clock.jumps == 1
