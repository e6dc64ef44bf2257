"""Answers to what a peer asks for, as far as they say more than what a function gives; those that wait for the log."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from notify.requests.client_requests import hold_log
from notify.requests.contents import failure_code, filter_fault
from notify.requests.reads import Answer
from notify.server.peers import Peer
from store.errors import StoreError
from store.wire import messages as wire
from store.wire.log_messages import HoldLog
from store.wire.messages import FailureCode, Role, WireMessage


class WaitingAnswer(msgspec.Struct, frozen=True):
    """The answer to an Append, a CancelDelayed or a HoldLog, to be given once the log is safe up to a mark."""

    request_id: int
    mark: int
    message: WireMessage
    refused: int = 0  # the sequence, if it is a refusal


def found(message: WireMessage, read: Callable[[int], Answer], limit_bytes: int) -> Answer:
    """The result of `read`, of so many bytes, for a request that only reads."""
    topic_filter = getattr(message, "topic_filter", None)
    fault = filter_fault(topic_filter) if topic_filter else ""
    if fault:
        return wire.Failed(FailureCode.BAD_REQUEST, f"topic filter {fault}"), b""
    try:
        return read(limit_bytes)
    except StoreError as error:
        return wire.Failed(failure_code(error), str(error)), b""


def following(peer: Peer, message: wire.Follow) -> WireMessage:
    if peer.role is Role.CLIENT and (message.history or message.spills):
        return wire.Failed(
            FailureCode.NOT_ALLOWED, "a client follows what comes from now on; read() has what is stored"
        )
    try:
        return peer.followed.follow(message, peer.role)
    except StoreError as error:
        return wire.Failed(failure_code(error), str(error))


def changed(peer: Peer, message: wire.CancelDelayed | HoldLog) -> WireMessage:
    """The answer to a client that changes something but its own messages."""
    if isinstance(message, HoldLog):
        return hold_log(peer.store, message)
    dispatching = peer.hub.messages.dispatching
    try:
        is_own = peer.own.has_topic(dispatching.topic_of(message.due_ms, message.log_offset))
        return wire.DelayedCancelled(is_own and dispatching.cancel(message.due_ms, message.log_offset))
    except StoreError as error:
        return wire.Failed(failure_code(error), str(error))
