"""What a flow knows of the messages that Kafka has, beside a model of a group: handed out again, acked, reset, lost."""

from __future__ import annotations

import pytest

from penstock.flows.errors import SinkAway
from penstock.flows.events import FlowEvent
from penstock.flows.sinks.kafka_done import MOST, DoneMessages, DoneRecord, _decode
from penstock.sdk.subscription import GroupPosition


def event(offset: int, at_ms: int | None = None) -> FlowEvent:
    stored_ms = 1_000_000 + offset if at_ms is None else at_ms
    return FlowEvent(f"id-{offset}", offset * 64, stored_ms, "t", b"", "", "", {}, offset)


def events(*offsets: int) -> list[FlowEvent]:
    return [event(offset) for offset in offsets]


def at(acked: int, began: int = 7, log: str = "a") -> GroupPosition:
    return GroupPosition(log, began, acked)


def sent(done: DoneMessages, *offsets: int) -> DoneMessages:
    return done.with_messages(done.missing(events(*offsets)))


def again(done: DoneMessages) -> DoneMessages:
    """As the next process knows it."""
    return DoneMessages(_decode(done.encode()))


@pytest.fixture
def done() -> DoneMessages:
    done = DoneMessages(None)
    done.place(at(0))
    return sent(done, 0, 1, 3, 4)


def test_done_messages_are_not_missing_for_the_next_process(done: DoneMessages) -> None:
    for each in (done, again(done)):
        each.place(at(0))
        assert list(each.missing(events(5, 0, 2, 1, 3))) == [2, 5]


def test_done_messages_acknowledged_by_the_store_are_forgotten(done: DoneMessages) -> None:
    done.place(at(3))
    assert len(done) == 2
    assert list(done.missing(events(1, 2, 3, 5))) == [5]
    assert _decode(again(done).encode()).ranges == (3, 2)


@pytest.mark.parametrize("position", [at(0, began=8), at(0, log="b")])
def test_a_reset_and_another_log_void_it(done: DoneMessages, position: GroupPosition) -> None:
    for each in (done, again(done)):
        each.place(position)
        assert list(each.missing(events(0, 1, 3))) == [0, 1, 3]
        assert list(sent(each, 0).missing(events(0, 1))) == [1]


def test_a_log_that_lost_its_end_counts_on_from_there(done: DoneMessages) -> None:
    """Messages 3 and 4 were lost with the power, and others have their places; one of them in the same millisecond."""
    newest_ms = 1_000_004
    for each in (done, again(done)):
        each.place(at(0))
        assert list(each.missing([event(3, newest_ms + 1)])) == [3]
        then = each.with_messages(each.missing([event(3, newest_ms + 1)]))
        assert list(then.missing([event(4, newest_ms + 1), event(1), event(3, newest_ms + 1)])) == [4]


def test_done_messages_are_bounded() -> None:
    done = DoneMessages(None)
    done.place(at(0))
    done = sent(done, *range(1, MOST + 1))
    with pytest.raises(SinkAway, match="behind message 0 of the group"):
        sent(done, MOST + 1)


def test_the_record_may_get_more_fields() -> None:
    assert _decode(b'{"log":"a","began":7,"ranges":[3,2],"newest_ms":9,"new":1}') == DoneRecord("a", 7, (3, 2), 9)
