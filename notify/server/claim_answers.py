"""The answers of a store to a Claim."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from notify.owners import ClaimDenied
from notify.server.events import FRAME_ROOM_BYTES
from store.state.sessions import SessionState
from store.wire import messages as wire
from store.wire.messages import FailureCode, WireMessage

ITEM_ROOM_BYTES = 5  # of a text in a list, for its length
_encode_session = msgspec.msgpack.Encoder().encode


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
    """These, or none if a frame does not hold all of them: then only an operator can assign the session."""
    size_bytes = sum(len(each.encode()) + ITEM_ROOM_BYTES for each in topic_filters)
    fits = len(topic_filters) <= wire.MOST_ITEMS and size_bytes + FRAME_ROOM_BYTES <= max_frame_bytes
    return list(topic_filters) if fits else []
