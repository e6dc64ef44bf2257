"""Requests of gateways about their clients: claims of sessions, quotas, pace, and answers about delayed messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest

import msgspec

from notify.owners import Claimant, ClaimDenied
from notify.requests.contents import text_fault
from notify.requests.reads import Answer
from notify.server.describing import ANSWERS
from notify.server.describing import Answer as GatewayAnswer
from notify.server.events import FRAME_ROOM_BYTES
from notify.server.handlers.connected import Connected, Handlers
from store.errors import WireError
from store.state.sessions import SessionState
from store.state.usage import Counted
from store.wire import messages as wire
from store.wire import pace_messages as of_pace
from store.wire import quota_messages as of_quota
from store.wire.frames import Frame
from store.wire.messages import FailureCode, WireMessage

ITEM_ROOM_BYTES = 5  # of a text in a list, for its length
_encode_session = msgspec.msgpack.Encoder().encode


class SessionHandlers:
    """Handles what the gateway at the other end of one connection asks and says of its clients."""

    def __init__(self, connected: Connected) -> None:
        self._connected = connected
        self._store = connected.peer.store

    def claim(self, frame: Frame, message: wire.Claim) -> None:
        """The answer comes once whoever has the session has let it go."""
        connected = self._connected
        fault = text_fault(message.client_id)
        if fault:
            connected.answer(frame.request_id, wire.Failed(FailureCode.BAD_REQUEST, f"client_id {fault}"))
            return

        def then(state: SessionState | ClaimDenied | None) -> None:
            hub = connected.peers.hub
            found = claim_answer(message.client_id, state, connected.events.told_end, connected.peers.max_frame_bytes)
            if message.address and isinstance(found, wire.Claimed):
                hub.claims.presences[message.client_id] = message.address, hub.messages.now_ms()
            connected.answer(frame.request_id, found)

        user, counts = message.user, message.counts
        claimant = Claimant(user, message.reads_all, message.reads, message.adopts_anonymous, message.address, counts)
        self._store.sessions.claim(message.client_id, message.clean_start, then, claimant)

    def release(self, _: Frame, message: wire.Release) -> None:
        self._store.sessions.release(message.client_id)

    def holds(self, _: Frame, message: wire.Holds) -> Iterator[None]:
        """Raises WireError."""
        users = message.users[: len(message.client_ids)]
        for client_id, user in zip_longest(message.client_ids, users):
            fault = text_fault(client_id)
            if fault:
                raise WireError(f"client_id {fault}")
            self._store.sessions.hold_again(client_id, user)
            yield

    def judged(self, _: Frame, message: wire.Judged) -> None:
        self._connected.peer.questions.answered(message)

    def described(self, _: Frame, message: GatewayAnswer) -> None:
        self._connected.peer.descriptions.answered(message)

    def behind(self, _: Frame, message: of_pace.Behind) -> None:
        self._store.lags(message.is_behind)

    def take(self, frame: Frame, message: of_quota.TakeMessage | of_quota.TakeSubscriptions) -> None:
        self._connected.reply(frame, partial(self._taken, message))

    def _taken(self, message: of_quota.TakeMessage | of_quota.TakeSubscriptions, _: int) -> Answer:
        found: list[of_quota.Taken] = []

        def then(number: int, fault: str) -> None:
            found.append(of_quota.Taken(int(number), fault))

        quotas = self._store.quotas
        if isinstance(message, of_quota.TakeMessage):
            wanted = Counted(message.wanted & 7)
            quotas.take_message(message.user, wanted, message.topic.encode(), message.size_bytes, then)
        else:
            quotas.take_subscriptions(message.user, message.client_id, message.topic_filters, message.live, then)
        return found[0], b""

    def tell_live(self, _: Frame, message: of_quota.LiveSubscriptions) -> None:
        self._store.quotas.tell_live(message.user, message.number)


def claim_answer(
    client_id: str, state: SessionState | ClaimDenied | None, told_end: int, max_frame_bytes: int
) -> WireMessage:
    """`told_end`: log_offset up to which the gateway knows where queues end."""
    if isinstance(state, ClaimDenied):
        return wire.ClaimRefused(_fitting(state.filters, max_frame_bytes), state.quota)
    session = _encode_session(state) if state is not None else b""
    if len(session) + FRAME_ROOM_BYTES > max_frame_bytes:
        text = f"the session of client {client_id} does not fit in a frame; raise wire.max_frame_bytes"
        return wire.Failed(FailureCode.UNAVAILABLE, text)
    return wire.Claimed(session, told_end)


def _fitting(topic_filters: Sequence[str], max_frame_bytes: int) -> list[str]:
    """These topic filters, or none if a frame cannot hold all of them: then only an operator can assign the session."""
    size_bytes = sum(len(each.encode()) + ITEM_ROOM_BYTES for each in topic_filters)
    fits = len(topic_filters) <= wire.MOST_ITEMS and size_bytes + FRAME_ROOM_BYTES <= max_frame_bytes
    return list(topic_filters) if fits else []


HANDLERS: Handlers = {
    wire.Claim: SessionHandlers.claim,
    wire.Release: SessionHandlers.release,
    wire.Holds: SessionHandlers.holds,
    wire.Judged: SessionHandlers.judged,
    of_pace.Behind: SessionHandlers.behind,
    of_quota.TakeMessage: SessionHandlers.take,
    of_quota.TakeSubscriptions: SessionHandlers.take,
    of_quota.LiveSubscriptions: SessionHandlers.tell_live,
    **dict.fromkeys(ANSWERS, SessionHandlers.described),
}
