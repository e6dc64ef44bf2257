"""Users of the SDK, Spark and commands at a store; penstock/servers/store_users.py implements the judge."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from notify.local.own_names import WHOLE_LOG
from store.wire.messages import Hello, Refused, WireMessage

REMEMBERED = 4_096  # answers about a connection's user; then they are asked again
REMEMBERED_CHARACTERS = 1 << 18  # of the topics in these
MOST_PASSES = 2  # a hook's answers count for a while anyway, and a reload ends the connection


class Permission(NamedTuple):
    """A permission that a client needs: publish, retain, subscribe, replay, read_log, hold_log or admin (`action`),
    for a topic or a filter.
    """

    action: str
    topic: str
    group: str | None = None  # the group that it would join as a consumer


class User(Protocol):
    """The authenticated user of a client."""

    @property
    def name(self) -> str:
        """Empty: the client has no name."""

    @property
    def namespace(self) -> str:
        """The namespace of its client, as in a Hello."""

    @property
    def is_open(self) -> bool:
        """True if a user may do everything but read the log itself, so that no question is needed."""

    @property
    def left_by(self) -> bytes:
        """The user as noted in its delayed messages (store/state/left_by.py); empty: they are not authorized again."""

    @property
    def epoch(self) -> int:
        """A number that changes whenever earlier answers may no longer hold."""

    @property
    def asks_again_s(self) -> int:
        """Seconds for which the answers of another server count; 0: there is none."""

    def filters(self) -> Iterator[str]:
        """Topic filters that its rules allow it to subscribe to; other rules may refuse a part of each."""

    def decide(self, wanted: Permission) -> bool | None:
        """Whether it is allowed; None: call ask()."""

    def ask(self, wanted: Permission, then: Callable[[bool | None], None]) -> None:
        """Call `then` once, from the loop; None: there was no answer, so nothing is allowed that was not before."""

    def fault(self, now_ms: int) -> str:
        """The reason why the connection must end; empty if it may stay."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a client's connection. `names`: those of its certificate."""

    address: str = ""
    """By which it is counted and banned: its own, or that of the browser for which a console asks."""
    names: tuple[str, ...] = ()
    claimed: str = ""
    """An address for which it says to ask without proving that it may: if it is banned, so is the client."""


class UserJudge(Protocol):
    """Authenticates clients, and refuses those that are banned or failed too often."""

    def admit(self, hello: Hello, origin: Origin, answer: Callable[[User | Refused | None], None]) -> None:
        """Call `answer` once, from the loop: with the user (None: users are not judged), or a refusal."""

    def banned(self, origin: Origin, account: str) -> str:
        """The ban that ends a client's connection; empty: it is not banned.

        `account`: its user, as the log names it.
        """


Judging = Generator[bool, None, Permission | None]


def _noted(answers: list[bool], heard: Callable[[], None], allowed: bool | None) -> None:
    answers.append(allowed is True)
    heard()


class ConnectionPermits:
    """The permissions of one connection, as far as asked; each topic is asked once."""

    def __init__(self, user: User | None) -> None:
        """`user` None: this store does not authenticate users."""
        self.user = user
        self._known: dict[Permission, bool] = {}
        self._known_characters = 0
        self._epoch = user.epoch if user is not None else 0

    @property
    def name(self) -> str:
        """The user's name; empty: the client has none."""
        return self.user.name if self.user is not None else ""

    def lets(self, request: WireMessage) -> bool:
        """Whether a request needs no permission."""
        return self.user is None or (self.user.is_open and not isinstance(request, WHOLE_LOG))

    def fault(self, now_ms: int) -> str:
        """The reason why the connection must end; empty if it may stay."""
        return self.user.fault(now_ms) if self.user is not None else ""

    def sees(self, wanted: Permission) -> bool:
        """Whether an item may be shown; one that another server would have to decide is left out."""
        if self.user is None or self.user.is_open:
            return True
        return self._decided(self.user, wanted) is True

    def filters(self) -> Iterator[str]:
        """The user's filters(); none if the connection has no user."""
        return self.user.filters() if self.user is not None else iter(())

    def known(self, wanted: Permission) -> bool | None:
        """Whether it is allowed; None: call ask()."""
        return True if self.user is None else self._decided(self.user, wanted)

    def ask(self, wanted: Permission, then: Callable[[bool | None], None]) -> None:
        """Ask what known() left open. `then` is called once, from the loop, as that of User.ask()."""
        assert self.user is not None

        def heard(allowed: bool | None) -> None:
            if allowed is not None:
                self._remember(wanted, allowed)
            then(allowed)

        self.user.ask(wanted, heard)

    def judging(
        self, wanted: Callable[[], Iterable[Permission]], waits: Callable[[], None], heard: Callable[[], None]
    ) -> Judging:
        """Judge one permission in each step, until one is refused: the result, None if all are allowed.

        A step that yields True `waits` for another server: do the next one once `heard` is called. What was allowed
        before the rules changed is judged once more by those of then.
        """
        user = self.user
        if user is None:
            return None
        for _ in range(MOST_PASSES):
            epoch = user.epoch
            for each in wanted():
                allowed = self._decided(user, each)
                if allowed is None:
                    answers: list[bool] = []
                    self.ask(each, partial(_noted, answers, heard))
                    while not answers:
                        waits()
                        yield True
                    allowed = answers[0]
                if not allowed:
                    return each
                yield False
            if user.epoch == epoch:
                break
        return None

    def _decided(self, user: User, wanted: Permission) -> bool | None:
        if user.epoch != self._epoch:
            self._epoch = user.epoch
            self._forget()
        allowed = self._known.get(wanted)
        if allowed is None:
            allowed = user.decide(wanted)
            if allowed is not None:
                self._remember(wanted, allowed)
        return allowed

    def _remember(self, wanted: Permission, allowed: bool) -> None:
        self._known_characters += len(wanted.topic)
        if len(self._known) >= REMEMBERED or self._known_characters > REMEMBERED_CHARACTERS:
            self._forget()
        self._known[wanted] = allowed

    def _forget(self) -> None:
        self._known.clear()
        self._known_characters = 0
