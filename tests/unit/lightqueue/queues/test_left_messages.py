"""Messages that are due and wait to be judged: by gateways, and by the store of its own clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lightqueue.queues.left_messages import AT_A_TIME, Allowed, LeftMessage, LeftMessages, Name
from store.state.left_by import LeftBy, encode, is_clients

MANY = 3 * AT_A_TIME


def left_messages(is_client: bool) -> dict[Name, LeftMessage]:
    left_by = encode(LeftBy("a", is_client=is_client))
    return {(is_client, number): LeftMessage(left_by, b"", "t", 1, False) for number in range(MANY)}


@pytest.mark.parametrize("is_hung", [True, False], ids=["clients of the store hang", "gateways hang"])
def test_neither_kind_waits_for_the_judges_of_the_other(is_hung: bool) -> None:
    left = LeftMessages()
    questions: list[tuple[Sequence[LeftMessage], Callable[[Allowed], None]]] = []

    class Hanging:
        def ask(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> bool:
            assert len({is_clients(each.left_by) for each in messages}) == 1
            questions.append((messages, then))
            return True

    left.judged_by(Hanging())
    messages = {**left_messages(is_hung), **left_messages(not is_hung)}
    left.ask(messages, 0.0)  # those that hang are first
    verdicts: dict[Name, bool] = {}
    for _ in range(MANY // AT_A_TIME):
        for asked, then in [each for each in questions if is_clients(each[0][0].left_by) is not is_hung]:
            then([True] * len(asked))
        questions = [each for each in questions if is_clients(each[0][0].left_by) is is_hung]
        verdicts |= left.collect_verdicts()
        waiting = left.collect_waiting(1.0)
        left.ask({name: messages[name] for name in waiting}, 1.0)
    assert sorted(verdicts) == sorted(left_messages(not is_hung))
    assert len(questions) == 1
    assert len(left) == MANY
    left.collect_waiting(1_000.0)  # it took too long, and is asked about again
    left.collect_waiting(1_002.0)
    assert len(left) == MANY - AT_A_TIME
