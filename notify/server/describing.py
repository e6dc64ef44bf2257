"""Clients that a gateway was asked to describe over the wire, and has not."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from store.wire.operator_messages import ClientDetails, Describe, Described

Then = Callable[[ClientDetails | None], None]

ANSWER_S = 1.0
MOST_ASKED = 1_000
"""Without an answer, of one gateway."""


class Descriptions:
    """Owner of the questions to one gateway. `then` of each is called once; None: it is not known."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[float, Then]] = {}  # by number: when it is given up, in seconds
        self._newest = secrets.randbits(48)  # no answer to another process is taken for one

    def ask(self, client_id: str, then: Then, now_s: float) -> Describe | None:
        """The frame that asks. None: too many wait already."""
        if len(self._asked) >= MOST_ASKED:
            then(None)
            return None
        self._newest += 1
        self._asked[self._newest] = now_s + ANSWER_S, then
        return Describe(self._newest, client_id)

    def answered(self, message: Described) -> None:
        _, then = self._asked.pop(message.number, (0.0, None))
        if then is not None:
            then(message.details)

    def tick(self, now_s: float) -> None:
        """Give up what waits for too long."""
        for number, (until_s, then) in list(self._asked.items()):
            if until_s > now_s:
                return
            del self._asked[number]
            then(None)

    def lost(self) -> None:
        """The connection ended."""
        asked, self._asked = self._asked, {}
        for _, then in asked.values():
            then(None)
