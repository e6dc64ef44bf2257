"""Answers that a peer gets once the log is safe, in the order of its requests; and the refusals that it knows of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from notify.requests.client_requests import Flushing
from notify.server.peers import Peer
from store.wire import messages as wire
from store.wire.messages import WireMessage


class WaitingAnswer(msgspec.Struct, frozen=True):
    """The answer to an Append, or a CancelDelayed, to be given once the log is safe up to a mark."""

    request_id: int
    mark: int
    message: WireMessage
    refused: int = 0  # the sequence, if it is a refusal


class ReadyAnswer(NamedTuple):
    """An answer to send now."""

    request_id: int
    message: WireMessage


class SafeAnswers:
    """Owner of the answers of one connection that wait for the log, and of the Pings after its refusals.

    A refused sequence is kept until the peer knows of it: until the Pong to a Ping after the refusal.
    """

    def __init__(self) -> None:
        self._answers: deque[WaitingAnswer] = deque()
        self._flushing = Flushing()
        self._pings = self._pongs = 0
        self._refusals: deque[tuple[int, int]] = deque()  # (number of the Ping after it, sequence)

    def __bool__(self) -> bool:
        """Whether an answer waits."""
        return bool(self._answers or self._flushing)

    @property
    def has_some(self) -> bool:
        """Whether take() or wants_ping() may have something for a gateway."""
        return bool(self._answers or self._refusals)

    def add(self, request_id: int, mark: int, message: WireMessage, refused: int = 0) -> None:
        """An answer for when the log is safe up to `mark`. `refused`: the sequence, if it is a refusal."""
        self._answers.append(WaitingAnswer(request_id, mark, message, refused))

    def add_published(self, peer: Peer, request_id: int, message: wire.Publish, answer: WireMessage, end: int) -> None:
        """The answer to a Publish whose records end at log_offset `end`."""
        is_replicated = peer.store.messages.log.kept is not None
        if isinstance(answer, wire.Failed):
            self.add(request_id, 0, answer, message.sequence)
        elif message.wait is wire.Wait.POLICY or (message.wait is wire.Wait.STORED and is_replicated):
            self.add(request_id, end, answer)
        else:
            self._flushing.add(peer.store, message.wait, request_id, end, answer)

    def take(self, peer: Peer) -> Iterator[ReadyAnswer]:
        """The answers that may be sent now."""
        safe = peer.store.appends.safe_mark
        while self._answers and self._answers[0].mark <= safe:
            answer = self._answers.popleft()
            yield ReadyAnswer(answer.request_id, answer.message)
            if answer.refused:
                self._refusals.append((self._pings, answer.refused))
        if self._flushing:
            for request_id, message in self._flushing.collect_answers(peer.store):
                yield ReadyAnswer(request_id, message)

    @property
    def wants_ping(self) -> bool:
        """Whether a Ping must follow: its Pong says that the newest refusals are known."""
        return bool(self._refusals) and self._refusals[-1][0] == self._pings

    def pinged(self) -> None:
        self._pings += 1

    def ponged(self, peer: Peer) -> None:
        self._pongs += 1
        while self._refusals and self._refusals[0][0] < self._pongs:
            peer.appends.knows_refused(self._refusals.popleft()[1])
