"""Who has received a message, without sockets: pages of many sessions, small steps, and each rule of a position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from notify.requests.listings import LOOKED_AT, NameSnapshots
from notify.requests.receivers import Reader, find_receivers, readers_of_all
from store.state.changes import (
    Sent,
    SessionOpened,
    Subscribed,
    SubscriptionState,
    Unsubscribed,
)
from store.state.receiver_states import ReceiverState
from store.state.receivers import IN_ONE_STEP, TracedPlace, receiver_state
from store.state.sessions import SessionState
from store.wire.base import WireMessage
from store.wire.messages import Failed, FailureCode
from store.wire.operator_messages import MessageReceivers, ReceiversFound
from tests.support.store_protocol_bench import WireBench
from tests.support.stores import batch_of, change

AT = 4_096


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path / "data")
    yield bench
    bench.store.close()


class Asking:
    """An operator's listing at a store."""

    def __init__(self, bench: WireBench) -> None:
        self._hub = bench.hub
        self._names: NameSnapshots[Reader] = NameSnapshots(lambda: readers_of_all(bench.hub))
        self.steps = 0

    def page(self, log_offset: int, after: int) -> WireMessage:
        answers: list[WireMessage] = []
        steps = find_receivers(self._hub, self._names, MessageReceivers(log_offset, after), answers.append)
        self.steps = sum(1 for _ in steps or ())
        (answer,) = answers
        return answer

    def pages(self, log_offset: int) -> list[ReceiversFound]:
        found: list[ReceiversFound] = []
        after: int | None = 0
        while after is not None:
            answer = self.page(log_offset, after)
            assert isinstance(answer, ReceiversFound)
            found.append(answer)
            after = answer.next
        return found


def append(bench: WireBench, topic: bytes = b"t/1") -> int:
    """A message; its log_offset."""
    return bench.store.append(batch_of(b"x", topic=topic))


def test_thousands_of_sessions_come_by_pages_in_small_steps(bench: WireBench) -> None:
    count = 2 * LOOKED_AT + 100
    for number in range(count):
        name = f"s-{number}"
        change(bench.store, SessionOpened(name, True, 60), Subscribed(name, [SubscriptionState("t/+", 1)]))
    log_offset = append(bench)
    asking = Asking(bench)
    pages = asking.pages(log_offset)
    assert [len(each.sessions) for each in pages] == [LOOKED_AT, LOOKED_AT, 100]
    assert {each.client_id for page in pages for each in page.sessions} == {f"s-{number}" for number in range(count)}
    assert [each.message is None for each in pages] == [False, True, True]
    asking.page(log_offset, 0)
    assert asking.steps >= LOOKED_AT // 16


def test_a_session_with_thousands_of_filters_is_looked_at_in_steps(bench: WireBench) -> None:
    filters = [SubscriptionState(f"other/{number}", 1) for number in range(5_000)]
    change(bench.store, SessionOpened("many", True, 60), Subscribed("many", [*filters[:2_500]]))
    change(bench.store, Subscribed("many", [*filters[2_500:], SubscriptionState("t/1", 1)]))
    asking = Asking(bench)
    (page,) = asking.pages(append(bench))
    assert [each.topic_filter for each in page.sessions] == ["t/1"]
    assert asking.steps >= 5_000 // IN_ONE_STEP


def test_names_of_any_length_fit_into_an_answer(bench: WireBench) -> None:
    """The message's own topic and publisher count as well."""
    for number in range(4):
        name = f"{number}" + "c" * 60_000
        change(bench.store, SessionOpened(name, True, 60), Subscribed(name, [SubscriptionState("#", 1)]))
    pages = Asking(bench).pages(append(bench, b"t" * 60_000))
    assert [len(each.sessions) for each in pages] == [0, 1, 1, 1, 1]


def test_where_no_message_begins_there_is_none(bench: WireBench) -> None:
    log_offset = append(bench)
    answer = Asking(bench).page(log_offset + 8, 0)
    assert isinstance(answer, Failed)
    assert (answer.code, "no message begins at" in answer.message) == (FailureCode.NO_SUCH_POSITION, True)


def test_who_unsubscribed_is_not_known(bench: WireBench) -> None:
    change(bench.store, SessionOpened("gone", True, 60), Subscribed("gone", [SubscriptionState("t/1", 1)]))
    log_offset = append(bench)
    change(bench.store, Unsubscribed("gone", ["t/1"]))
    (page,) = Asking(bench).pages(log_offset)
    assert page.sessions == []
    change(bench.store, Subscribed("gone", [SubscriptionState("t/1", 1)]))
    (page,) = Asking(bench).pages(log_offset)
    assert [each.state for each in page.sessions] == ["later"]


# --- what a position says


def session(change: Callable[[SessionState], object], acked: int = 0, expiry_s: int = 60) -> SessionState:
    found = SessionState("c", expiry_s, acked)
    found.subscriptions["t/1"] = SubscriptionState("t/1", 1)
    change(found)
    return found


def state_of(found: SessionState, online: bool = False, publisher: str = "") -> ReceiverState:
    steps = receiver_state(found, TracedPlace(AT, "t/1", publisher), online)
    ((_, state),) = [each for each in steps if each is not None]
    return state


def in_flight(log_offset: int) -> bytes:
    return (5).to_bytes(2, "little") + log_offset.to_bytes(8, "little")


def test_a_position_behind_a_message_says_received() -> None:
    for acked, online, expected in ((AT, False, "waiting"), (AT, True, "under_way"), (AT + 8, False, "received")):
        assert state_of(session(lambda _: None, acked=acked), online) == expected
    assert state_of(session(lambda each: each.done.add(AT))) == "received"


def test_what_was_in_flight_when_the_connection_ended() -> None:
    """Two bytes of a packet identifier may look like the end of a log_offset before it."""
    closed = session(lambda each: setattr(each, "frontier", AT + 8))
    assert (state_of(closed), state_of(closed, online=True)) == ("received", "received")
    closed.inflight = in_flight(AT - 8) + in_flight(AT)
    assert (state_of(closed), state_of(closed, online=True)) == ("in_flight", "under_way")
    closed.inflight = in_flight(AT - 8)
    assert state_of(closed) == "received"
    closed.gap = 8  # records of the session are lost: the end of that connection is not believed
    assert state_of(closed) == "waiting"


def test_a_message_of_qos_2_is_in_flight_until_it_is_released() -> None:
    sent = session(lambda each: each.sent.update({7: Sent(7, AT, 2, False)}))
    assert state_of(sent) == "in_flight"
    sent.released.add(7)
    assert state_of(sent) == "received"


def test_a_retained_message_that_is_owed_to_a_later_subscription() -> None:
    later = session(lambda each: each.subscriptions.update({"t/1": SubscriptionState("t/1", 1, since=AT + 8)}))
    assert state_of(later) == "later"
    later.owed.append(Sent(0, AT, 1, True, owed=True))
    assert (state_of(later), state_of(later, online=True)) == ("waiting", "under_way")


def test_no_local_and_qos_0() -> None:
    own = session(lambda each: each.subscriptions.update({"t/1": SubscriptionState("t/1", 1, no_local=True)}))
    assert (state_of(own, publisher="c"), state_of(own, publisher="other")) == ("filtered", "waiting")
    live = session(lambda each: each.subscriptions.update({"t/1": SubscriptionState("t/1", 0)}))
    assert state_of(live) == "unknown"
    assert state_of(session(lambda _: None, expiry_s=0)) == "unknown"
