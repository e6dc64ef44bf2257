"""Users of the SDK, Spark and commands at a store: penstock/servers/store_users.py gives the judge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from notify.local.own_names import WHOLE_LOG
from store.wire.messages import Hello, Message

REMEMBERED = 4_096  # of what a connection was told about its user; then it is asked anew


class Permission(NamedTuple):
    """What a client wants to do: publish, retain, subscribe, replay or read_log (`action`) a topic or a filter."""

    action: str
    topic: str
    group: str | None = None  # of which it would be a consumer


class User(Protocol):
    """Who a client was found to be."""

    @property
    def name(self) -> str:
        """Empty: the client has no name."""

    @property
    def namespace(self) -> str:
        """That of its client, as in a Hello."""

    @property
    def is_open(self) -> bool:
        """Whether it may do everything but read the log as it is, so that nothing else need be asked."""

    @property
    def left_by(self) -> bytes:
        """What its delayed messages say of who left them (store.left_by); empty: they are not judged again."""

    @property
    def epoch(self) -> int:
        """Another number whenever what was said about permissions may be different now."""

    def decide(self, wanted: Permission) -> bool | None:
        """None: it has to be asked."""

    def ask(self, wanted: Permission, then: Callable[[bool], None]) -> None:
        """Call `then` once, from the loop."""

    def fault(self, now_ms: int) -> str:
        """Why it may not stay; empty if it may."""


class UserJudge(Protocol):
    """Says who a client is."""

    def admit(self, hello: Hello, address: str, names: tuple[str, ...], answer: Callable[[User | str], None]) -> None:
        """Call `answer` once, from the loop: with the user, or why it is not let in. `names`: of its certificate."""


class Permits:
    """What one connection may do, as far as it was asked: each topic once."""

    def __init__(self, user: User | None) -> None:
        """None: users are not judged here."""
        self.user = user
        self._known: dict[Permission, bool] = {}
        self._epoch = user.epoch if user is not None else 0

    @property
    def name(self) -> str:
        """Of the user; empty: the client has no name."""
        return self.user.name if self.user is not None else ""

    def lets(self, request: Message) -> bool:
        """Whether nothing need be asked for this."""
        return self.user is None or (self.user.is_open and not isinstance(request, WHOLE_LOG))

    def fault(self, now_ms: int) -> str:
        """Why its user may not stay; empty if it may."""
        return self.user.fault(now_ms) if self.user is not None else ""

    def sees(self, wanted: Permission) -> bool:
        """Whether it may, of what is only shown or left out; what would have to be asked is left out."""
        if self.user is None or self.user.is_open:
            return True
        return self._decided(self.user, wanted) is True

    def judge(self, wanted: list[Permission], then: Callable[[Permission | None], None]) -> None:
        """Call `then` with the first that it may not do, or None; at once if it is known, else later."""
        user = self.user
        if user is None:
            then(None)
            return
        for at, each in enumerate(wanted):
            allowed = self._decided(user, each)
            if allowed is None:
                rest = wanted[at:]
                user.ask(each, partial(self._heard, rest, then))
                return
            if not allowed:
                then(each)
                return
        then(None)

    def _heard(self, rest: list[Permission], then: Callable[[Permission | None], None], allowed: bool) -> None:
        self._remember(rest[0], allowed)
        if allowed:
            self.judge(rest[1:], then)
        else:
            then(rest[0])

    def _decided(self, user: User, wanted: Permission) -> bool | None:
        if user.epoch != self._epoch:
            self._epoch = user.epoch
            self._known.clear()
        allowed = self._known.get(wanted)
        if allowed is None:
            allowed = user.decide(wanted)
            if allowed is not None:
                self._remember(wanted, allowed)
        return allowed

    def _remember(self, wanted: Permission, allowed: bool) -> None:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[wanted] = allowed
