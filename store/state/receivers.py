"""What the position of a session says about one message: whether its client has it. No I/O, and no record of its own.

A position is behind a message once the client acknowledged it (at QoS 0: once it was sent), or once it was left out: it
expired, or was larger than the client takes. What a session does not subscribe to any more is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from store.state.changes import Sent, SubscriptionState
from store.state.receiver_states import ReceiverState
from store.state.sessions import SessionState, is_shared
from store.topics import matches

IN_ONE_STEP: Final = 256
"""Subscriptions, or messages in flight, that are looked at before others have their turn: some 0.3 ms."""
_INFLIGHT_BYTES, _OFFSET_AT = 10, 2  # of each message in SessionState.inflight, and where its log_offset stands
_BY_POSITION, _FILTERED, _AT_QOS_0, _LATER = range(4)
"""What a subscription makes of the message; the least of all of a session decides."""


class TracedPlace(NamedTuple):
    """The message that is looked for. `publisher`: client_id of the MQTT client; empty: none."""

    log_offset: int
    topic: str
    publisher: str


def receiver_state(
    session: SessionState, message: TracedPlace, online: bool
) -> Iterator[tuple[SubscriptionState, ReceiverState] | None]:
    """The subscription that decides, and what is known; nothing if none matches. None in between: a step is done."""
    found: tuple[int, SubscriptionState] | None = None
    for number, each in enumerate(list(session.subscriptions.values()), 1):
        if not is_shared(each.topic_filter) and matches(each.topic_filter, message.topic):
            rank = _rank(session, each, message)
            if found is None or (rank, -each.qos) < (found[0], -found[1].qos):
                found = (rank, each)
        if number % IN_ONE_STEP == 0:
            yield None
    if found is None:
        return
    rank, subscription = found
    at = message.log_offset
    for sent in _in_steps(session.sent.values()):
        if sent is not None and sent.log_offset == at:
            yield subscription, "received" if sent.packet_id in session.released else "in_flight"
            return
        if sent is None:
            yield None
    for owed in _in_steps(session.owed):
        if owed is not None and owed.log_offset == at:
            yield subscription, "under_way" if online else "waiting"
            return
        if owed is None:
            yield None
    if rank != _BY_POSITION:
        yield subscription, "filtered" if rank == _FILTERED else "later" if rank == _LATER else "unknown"
    else:
        yield subscription, _by_position(session, at, online)


def _rank(session: SessionState, subscription: SubscriptionState, message: TracedPlace) -> int:
    if subscription.since > message.log_offset:
        return _LATER
    if subscription.no_local and message.publisher == session.client_id:
        return _FILTERED
    return _BY_POSITION if subscription.qos and session.session_expiry_interval else _AT_QOS_0


def _by_position(session: SessionState, log_offset: int, online: bool) -> ReceiverState:
    if log_offset < session.acked or log_offset in session.done:
        return "received"
    was_unacknowledged = _is_in(session.inflight, log_offset)
    if not session.gap and log_offset < session.frontier and not was_unacknowledged:
        return "received"  # everything before it was put in flight, and of that the rest is acknowledged
    if online:
        return "under_way"
    return "in_flight" if was_unacknowledged else "waiting"


def _is_in(inflight: bytes, log_offset: int) -> bool:
    """Whether a message is among those of SessionState.inflight."""
    wanted, at = log_offset.to_bytes(8, "little"), -1
    while (at := inflight.find(wanted, at + 1)) >= 0:
        if at % _INFLIGHT_BYTES == _OFFSET_AT:
            return True
    return False


def _in_steps(messages: Collection[Sent]) -> Iterator[Sent | None]:
    """All of these, which may change meanwhile; None in between: a step is done."""
    for number, each in enumerate(list(messages), 1):
        yield each
        if number % IN_ONE_STEP == 0:
            yield None
