"""How many messages a consumer asks for in advance."""

import pytest

from penstock.sdk import pace as pace_module
from penstock.sdk.pace import AHEAD_S, MOST_GROWTH, PATIENCE_S, TakingPace


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(pace_module, "monotonic", lambda: now[0])
    return now


def finished(pace: TakingPace, number: int, took_s: float, now_s: list[float]) -> int:
    pace.took(number, now_s[0], now_s[0] + 30)
    now_s[0] += took_s
    pace.measure()
    return pace.ahead


def test_a_fast_program_gets_more_in_steps_and_at_most_so_many(now_s: list[float]) -> None:
    pace = TakingPace(50)
    assert finished(pace, 1, 1e-5, now_s) == MOST_GROWTH
    assert finished(pace, 4, 4e-5, now_s) == MOST_GROWTH**2
    assert finished(pace, 16, 16e-5, now_s) == 50


def test_a_slow_program_gets_none_in_advance(now_s: list[float]) -> None:
    pace = TakingPace(50)
    finished(pace, 1, 1e-5, now_s)
    assert finished(pace, 4, 4 * AHEAD_S + 0.1, now_s) == 0


def test_an_overdue_batch_is_known_until_it_is_finished(now_s: list[float]) -> None:
    pace = TakingPace(50)
    assert not pace.is_overdue(now_s[0] + 99)
    pace.took(4, now_s[0], now_s[0] + 30)
    assert not pace.is_overdue(now_s[0] + PATIENCE_S)
    assert pace.is_overdue(now_s[0] + PATIENCE_S + 0.1)
    pace.measure()
    assert not pace.is_overdue(now_s[0] + 99)


def test_the_time_of_a_batch_ends_with_the_invisible_time(now_s: list[float]) -> None:
    pace = TakingPace(50)
    pace.took(4, now_s[0], now_s[0] + 0.5)
    assert pace.is_overdue(now_s[0] + 0.6)


def test_given_back_messages_are_not_measured(now_s: list[float]) -> None:
    pace = TakingPace(50)
    finished(pace, 1, 1e-5, now_s)
    pace.took(4, now_s[0], now_s[0] + 30)
    pace.reset()
    pace.measure()
    assert pace.ahead == 0
