"""Claims of sessions over the wire: what a gateway asks."""

from __future__ import annotations

from collections.abc import Callable

from notify.owners import Claimant, ClaimDenied
from notify.requests.contents import text_fault
from notify.server.claim_answers import claim_answer
from notify.server.peers import Peer
from store.state.sessions import SessionState
from store.wire import messages as wire
from store.wire.messages import FailureCode, WireMessage


def claim(
    peer: Peer,
    message: wire.Claim,
    max_frame_bytes: int,
    told_end: Callable[[], int],
    answer: Callable[[WireMessage], None],
) -> None:
    """Claim a session for a peer. `told_end`: log_offset up to which it knows where queues end; `answer`s later."""
    fault = text_fault(message.client_id)
    if fault:
        answer(wire.Failed(FailureCode.BAD_REQUEST, f"client_id {fault}"))
        return

    def then(state: SessionState | ClaimDenied | None) -> None:
        found = claim_answer(message.client_id, state, told_end(), max_frame_bytes)
        if message.address and isinstance(found, wire.Claimed):
            peer.hub.claims.presences[message.client_id] = message.address, peer.hub.messages.now_ms()
        answer(found)

    user, counts = message.user, message.counts
    claimant = Claimant(user, message.reads_all, message.reads, message.adopts_anonymous, message.address, counts)
    peer.store.sessions.claim(message.client_id, message.clean_start, then, claimant)
