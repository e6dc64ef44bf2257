"""Requests over the wire without a socket or a clock: order, errors, and what a lost connection leaves."""

from __future__ import annotations

import pytest

from store.errors import RequestRefused, StoreAway, WireError
from store.wire import messages as wire
from store.wire.client.request_errors import RequestErrors
from store.wire.client.requests import Outcome, PendingRequests, RequestRules
from store.wire.frames import Frame, FrameReader, encode
from store.wire.messages import FailureCode, Role

WELCOME = wire.Welcome(1, "main", 0, 1 << 20, 256 << 10, 500, [], 64)
FAILED = wire.Failed(FailureCode.STORE_FULL, "full")


class Asker:
    """One user of a store, and the store's end of the connection."""

    def __init__(self) -> None:
        self.woken = 0
        self.requests = PendingRequests(RequestRules(), lambda: 0.0, self.wake)
        self.outcomes: list[Outcome] = []

    def wake(self) -> None:
        self.woken += 1

    def ask(self, message: wire.WireMessage) -> None:
        self.requests.ask(message, lambda outcome, _: self.outcomes.append(outcome))

    def sent(self) -> list[Frame]:
        return FrameReader(WELCOME.max_frame_bytes, Role.GATEWAY).feed(b"".join(self.requests.outgoing()))

    def answer(self, message: wire.WireMessage, request_id: int) -> None:
        (frame,) = FrameReader(WELCOME.max_frame_bytes, Role.STORE).feed(encode(message, request_id))
        self.requests.received(frame)


def test_messages_without_an_answer_keep_their_order_and_wait_for_a_connection() -> None:
    asker = Asker()
    asker.requests.tell_first(wire.Unfollow([9]))  # there is no connection on which that has a meaning
    asker.ask(wire.Check([1]))
    asker.requests.tell(wire.Release("c"))
    asker.ask(wire.Check([2]))
    assert asker.sent() == []
    asker.requests.connected(WELCOME)
    asker.requests.tell_first(wire.Unfollow([7]))
    sent = [(frame.message, frame.request_id) for frame in asker.sent()]
    assert sent == [(wire.Unfollow([7]), 0), (wire.Check([1]), 1), (wire.Release("c"), 0), (wire.Check([2]), 2)]
    asker.requests.lost("cut")
    asker.requests.connected(WELCOME)
    assert [frame.message for frame in asker.sent()] == [wire.Check([1]), wire.Check([2])]


def test_a_request_stays_unanswered_until_it_is_done() -> None:
    """A gateway deals with an answer first: if that fails, the connection ends and the request is sent again."""
    asker = Asker()
    asker.requests.connected(WELCOME)
    asker.ask(wire.Check([1]))
    (sent,) = asker.sent()
    request = asker.requests.unanswered(sent.request_id)
    assert len(asker.requests) == 1
    asker.requests.done(request)
    assert len(asker.requests) == 0
    with pytest.raises(WireError, match="which nobody asked for"):
        asker.requests.unanswered(sent.request_id)


def test_waiting_requests_can_be_taken_back() -> None:
    asker = Asker()
    for number in (1, 2):
        asker.ask(wire.Check([number]))
    assert [each.message for each in asker.requests.collect_waiting()] == [wire.Check([1]), wire.Check([2])]
    asker.requests.connected(WELCOME)
    assert asker.sent() == []


def test_a_refusal_becomes_an_exception() -> None:
    asker = Asker()
    asker.requests.connected(WELCOME)
    asker.ask(wire.Check([1]))
    asker.answer(FAILED, asker.sent()[0].request_id)
    (refused,) = asker.outcomes
    assert isinstance(refused, RequestRefused)
    assert (refused.code, str(refused)) == ("store_full", "full")


def test_each_user_names_its_exceptions_and_checks_what_came() -> None:
    errors = RequestErrors(by_code={FailureCode.NOT_PERMITTED: lambda _, message: PermissionError(message)})
    assert isinstance(errors.of(FAILED), RequestRefused)
    assert isinstance(errors.of(wire.Failed(FailureCode.NOT_PERMITTED, "no")), PermissionError)
    assert isinstance(errors.lost("cut"), StoreAway)
    assert errors.checked(wire.Pong(1), wire.Pong) == wire.Pong(1)
    with pytest.raises(RequestRefused, match="full"):
        errors.checked(FAILED, wire.Pong)
    with pytest.raises(WireError, match="the store answered with Ping"):
        errors.checked(wire.Ping(), wire.Pong)
