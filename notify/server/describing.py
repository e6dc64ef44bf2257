"""Questions to a gateway over the wire, about itself and its clients, that it has not answered yet."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from notify.server.line import Line
from store.wire.handshake import DESCRIBING_VERSION, GATEWAYS_VERSION
from store.wire.messages import Hello, Role
from store.wire.operator_messages import (
    ClientDetails,
    Describe,
    Described,
    FiguresTold,
    GatewayReport,
    TellFigures,
)

ANSWERS = (Described, FiguresTold)
GatewayQuestion = Describe | TellFigures
Answer = Described | FiguresTold
Then = Callable[[Answer | None], None]

ANSWER_S = 1.0
MOST_ASKED = 1_000
"""Without an answer, of one gateway."""


class Descriptions:
    """Owner of the questions to one gateway. `then` of each is called once; None: it is not known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._versions: frozenset[int] = frozenset()
        self._asked: dict[int, tuple[float, Then]] = {}  # by number: when it is given up, in seconds
        self._newest = secrets.randbits(48)  # no answer to another process is taken for one

    def met(self, hello: Hello) -> None:
        """Ask this peer from now on."""
        self._versions = frozenset(hello.versions if hello.role == Role.GATEWAY else ())

    def describe(self, line: Line | None, client_id: str, then: Callable[[ClientDetails | None], None]) -> None:
        """Ask about a client."""

        def heard(answer: Answer | None) -> None:
            then(answer.details if isinstance(answer, Described) else None)

        if line is None or DESCRIBING_VERSION not in self._versions:
            then(None)
        else:
            self._ask(line, lambda number: Describe(number, client_id), heard)

    def report(self, line: Line | None, after: int, then: Callable[[GatewayReport | None], None]) -> None:
        """Ask for the gateway's figures after the first `after`."""

        def heard(answer: Answer | None) -> None:
            then(answer.report if isinstance(answer, FiguresTold) else None)

        if line is None or GATEWAYS_VERSION not in self._versions:
            then(None)
        else:
            self._ask(line, lambda number: TellFigures(number, after), heard)

    def _ask(self, line: Line, question: Callable[[int], GatewayQuestion], then: Then) -> None:
        if len(self._asked) >= MOST_ASKED:
            then(None)
            return
        self._newest += 1
        self._asked[self._newest] = self._clock() + ANSWER_S, then
        line.told(question(self._newest))

    def answered(self, message: Answer) -> None:
        _, then = self._asked.pop(message.number, (0.0, None))
        if then is not None:
            then(message)

    def tick(self) -> None:
        """Give up what waits for too long."""
        now_s = self._clock()
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
