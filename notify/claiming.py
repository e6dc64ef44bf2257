"""Claims of sessions over the wire: what a gateway asks, and what it is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from notify.contents import text_fault
from notify.events import FRAME_ROOM_BYTES
from notify.owners import Claimant, ClaimRefused
from notify.peers import Peer
from store.sessions import SessionState
from store.wire import messages as wire
from store.wire.messages import FailureCode, Message

ITEM_ROOM_BYTES = 5  # of a text in a list, for its length
_encode_session = msgspec.msgpack.Encoder().encode


def claim(
    peer: Peer,
    message: wire.Claim,
    max_frame_bytes: int,
    told_end: Callable[[], int],
    answer: Callable[[Message], None],
) -> None:
    """Claim a session for a peer. `told_end`: the log's end, as far as the peer knows of it; `answer`: now or later."""
    fault = text_fault(message.client_id)
    if fault:
        answer(wire.Failed(FailureCode.BAD_REQUEST, f"client_id {fault}"))
        return

    def then(state: SessionState | ClaimRefused | None) -> None:
        if isinstance(state, ClaimRefused):
            answer(wire.ClaimRefused(_fitting(state.filters, max_frame_bytes)))
            return
        session = _encode_session(state) if state is not None else b""
        if len(session) + FRAME_ROOM_BYTES > max_frame_bytes:
            text = f"the session of client {message.client_id} does not fit in a frame; raise wire.max_frame_bytes"
            answer(wire.Failed(FailureCode.UNAVAILABLE, text))
            return
        if message.address:
            peer.hub.presences[message.client_id] = message.address, peer.hub.messages.now_ms()
        answer(wire.Claimed(session, told_end()))

    claimant = Claimant(message.user, message.reads_all, message.reads, message.adopts_anonymous, message.address)
    peer.member.claim(message.client_id, message.clean_start, then, claimant)


def _fitting(topic_filters: Sequence[str], max_frame_bytes: int) -> list[str]:
    """These, or none if a frame does not hold all of them: then only an operator can assign the session."""
    size_bytes = sum(len(each.encode()) + ITEM_ROOM_BYTES for each in topic_filters)
    fits = len(topic_filters) <= wire.MOST_ITEMS and size_bytes + FRAME_ROOM_BYTES <= max_frame_bytes
    return list(topic_filters) if fits else []
