"""Waiting for several answers."""

from notify.steps import Awaited


def test_awaited_calls_back_once_with_the_last_answer() -> None:
    calls: list[str] = []
    awaited = Awaited(2, lambda: calls.append("all"))
    awaited.came()
    assert calls == []
    awaited.came()
    assert calls == ["all"]


def test_more_answers_may_be_awaited_meanwhile() -> None:
    calls: list[str] = []
    awaited = Awaited(1, lambda: calls.append("all"))
    awaited.number += 1
    awaited.came()
    assert calls == []
    awaited.came()
    assert calls == ["all"]
