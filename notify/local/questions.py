"""Messages that are due, and whether they may be sent: asked by the store, answered by a gateway (ADR 37)."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from lightqueue.queues.left_messages import Allowed, LeftMessage
from notify.api import SessionListener
from notify.local.members import MemberOwner
from notify.steps import Awaited
from store.state.left_by import is_clients
from store.wire import messages as wire
from store.wire.base import WireMessage
from store.wire.operator_messages import (
    ClientDetails,
    Describe,
    Described,
    FiguresTold,
    GatewayReport,
    TellFigures,
)


class Questions:
    """Owner of what a gateway was asked over the wire and has not answered."""

    def __init__(self) -> None:
        self._asked: dict[int, Callable[[Allowed], None]] = {}
        self._newest = secrets.randbits(48)  # no answer to another process, or about another time, is taken for one

    def ask(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> wire.Judge:
        """The frame that asks; `then` is called once."""
        self._newest += 1
        self._asked[self._newest] = then
        return wire.Judge(self._newest, [(*each,) for each in messages])

    def answered(self, message: wire.Judged) -> None:
        then = self._asked.pop(message.number, None)
        if then is not None:
            then(message.allowed)

    def lost(self) -> None:
        """The connection ended: what was asked is not answered any more."""
        asked, self._asked = self._asked, {}
        for then in asked.values():
            then([None])


def judged(message: WireMessage, listener: SessionListener, tell: Callable[[WireMessage], object]) -> bool:
    """Pass a question of the store to a gateway: judge, describe or report. False: the message is no such question."""
    if isinstance(message, Describe):
        listener.describe(message.client_id, partial(_tell_described, message.number, tell))
        return True
    if isinstance(message, TellFigures):
        listener.report(message.after, partial(_tell_figures, message.number, tell))
        return True
    if not isinstance(message, wire.Judge):
        return False
    left = [LeftMessage(*each) for each in message.messages]
    listener.judge(left, partial(_answer, message.number, tell))
    return True


def _tell_described(number: int, tell: Callable[[WireMessage], object], details: ClientDetails | None) -> None:
    tell(Described(number, details))


def _tell_figures(number: int, tell: Callable[[WireMessage], object], report: GatewayReport | None) -> None:
    if report is not None:
        tell(FiguresTold(number, report))


def _answer(number: int, tell: Callable[[WireMessage], object], allowed: Allowed) -> None:
    tell(wire.Judged(number, list(allowed)))


AskOne = Callable[[Sequence[LeftMessage], Callable[[Allowed], None]], object]


class Judges:
    """Asks whether messages that are due may be sent: gateways in turn, or the judge of the store's clients."""

    def __init__(self, owner: MemberOwner) -> None:
        self._owner = owner
        self._turn = 0
        self._of_clients: AskOne = self._ask_gateways_if_any

    def judge_clients_by(self, ask: AskOne) -> None:
        """Set `ask` as the judge of messages that SDK users left."""
        self._of_clients = ask

    def ask(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> bool:
        """Ask about messages; `then` gets all answers at once. False: nobody is there who could be asked."""
        by_clients = [is_clients(each.left_by) for each in messages]
        answers: list[bool | None] = [None] * len(messages)
        parts: list[tuple[AskOne, bool]] = [(self._of_clients, True), (self._ask_gateways, False)]
        parts = [(ask, which) for ask, which in parts if which in by_clients]
        awaited = Awaited(len(parts), lambda: then(answers))

        def heard(which: bool, allowed: Allowed) -> None:
            places = [at for at, by_client in enumerate(by_clients) if by_client is which]
            for at, answer in zip(places, allowed, strict=False):
                answers[at] = answer
            awaited.came()

        if not any(by_clients):
            return self._ask_gateways(messages, then)
        for ask, which in parts:
            part = [each for each, by_client in zip(messages, by_clients, strict=True) if by_client is which]
            if ask(part, partial(heard, which)) is False:
                heard(which, ())
        return True

    def _ask_gateways_if_any(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> None:
        """Ask gateways about messages of SDK users when the store itself does not know users any more."""
        if not self._ask_gateways(messages, then):
            then([True] * len(messages))

    def _ask_gateways(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> bool:
        """Ask one gateway, and the next one if it judges nothing. If none judges, all messages may be sent."""
        gateways = deque(each for each in self._owner.session_listeners() if each.can_judge)
        self._turn += 1
        gateways.rotate(self._turn)

        def heard(allowed: Allowed) -> None:
            if allowed:
                then(allowed)
            elif gateways:
                gateways.popleft().judge(messages, heard)
            else:
                then([True] * len(messages))

        if not gateways:
            return False
        gateways.popleft().judge(messages, heard)
        return True
