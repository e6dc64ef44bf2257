"""Wills and delayed messages that are due and wait for authorization: asked about in batches until there is an answer.

The store has no permissions of MQTT clients. A message that needs authorization names its user (LEFT_BY) and stays
pending, as a delayed message, until a gateway has answered: after any crash it is asked about again (ADR 37). No I/O,
no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple, Protocol

from store.state.left_by import is_clients

AT_A_TIME = 100  # messages in one question; a gateway judges them in about 1 ms
MOST_WAITING = 100_000  # messages that wait here instead of holding up others: some 25 MB
ANSWER_S = 30.0  # seconds; after that a question is asked again
RETRY_S = 1.0


class LeftMessage(NamedTuple):
    """A message that is due: its user, and what of it the permissions depend on."""

    left_by: bytes
    client_id: bytes
    topic: str
    qos: int
    retain: bool


Allowed = Sequence[bool | None]
"""The answer for each message; None, or a missing one: undecided for now."""
Name = tuple[int, int]
"""due_ms and first_offset of a delayed message, which identify it."""


class LeftMessageJudge(Protocol):
    """The judge of which messages may be sent."""

    def ask(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> bool:
        """Call `then` with the answers, now, later or never. False: no gateway is there to ask."""


class _Line:
    """Messages that wait for the same judges: one question at a time, in the order in which they became due."""

    def __init__(self, verdicts: dict[Name, bool]) -> None:
        """`verdicts`: receives the answers."""
        self._waiting: deque[Name] = deque()  # not asked about yet
        self._asked: list[Name] = []
        self._question = 0
        self._again_s = 0.0  # no question before this time
        self._late_s = 0.0
        self._failed = False  # the last question had no or undecided answers
        self._verdicts = verdicts

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked)

    def next(self, now_s: float) -> list[Name]:
        """The next messages to ask about, if a question may be asked now."""
        if self._asked and now_s >= self._late_s:
            self._answered(self._question, ())
        if self._failed:
            self._failed = False
            self._again_s = now_s + RETRY_S
        if self._asked or now_s < self._again_s:
            return []
        return [self._waiting.popleft() for _ in range(min(AT_A_TIME, len(self._waiting)))]

    def wait(self, names: Iterable[Name]) -> None:
        self._waiting.extend(names)

    def ask(self, judge: LeftMessageJudge | None, messages: dict[Name, LeftMessage], now_s: float) -> None:
        """Ask about some of these messages now, if no question is open, and about the others later."""
        names = list(messages)
        if not names or self._asked or now_s < self._again_s:
            self.wait(names)
            return
        self.wait(names[AT_A_TIME:])
        self._asked = names[:AT_A_TIME]
        self._question += 1
        self._late_s = now_s + ANSWER_S
        answered = partial(self._answered, self._question)
        if judge is None or not judge.ask([messages[name] for name in self._asked], answered):
            answered(())

    def _answered(self, question: int, allowed: Allowed) -> None:
        if question != self._question:
            return  # the answer came too late, or twice
        asked, self._asked = self._asked, []
        self._question += 1
        for name, is_allowed in zip_longest(asked, allowed[: len(asked)]):
            if is_allowed is None:
                self._failed = True
                self._waiting.append(name)
            else:
                self._verdicts[name] = is_allowed


class LeftMessages:
    """Owner of the messages that wait for authorization. Messages of MQTT clients, which gateways judge, and messages
    of SDK users, which the store's own process judges, wait apart, so that neither waits for the other's judges.
    """

    def __init__(self) -> None:
        self._judge: LeftMessageJudge | None = None
        self.refused = 0
        self._verdicts: dict[Name, bool] = {}
        self._lines = {is_client: _Line(self._verdicts) for is_client in (False, True)}
        self._taken: dict[Name, _Line] = {}  # the last collect_waiting(), and each message's line

    def __len__(self) -> int:
        return sum(map(len, self._lines.values())) + len(self._verdicts)

    def judged_by(self, judge: LeftMessageJudge | None) -> None:
        """Set the judge that is asked from now on; None: there is none."""
        self._judge = judge

    @property
    def is_full(self) -> bool:
        return len(self) >= MOST_WAITING

    @property
    def has_verdicts(self) -> bool:
        return bool(self._verdicts)

    def collect_verdicts(self) -> dict[Name, bool]:
        """The answers so far. Those that the caller cannot use yet go back by keep()."""
        verdicts = self._verdicts.copy()
        self._verdicts.clear()
        return verdicts

    def keep(self, verdicts: dict[Name, bool]) -> None:
        self._verdicts.update(verdicts)

    def collect_waiting(self, now_s: float) -> list[Name]:
        """The next messages to ask about; the caller gives each to ask() or wait(), or is done with it."""
        self._taken = {name: line for line in self._lines.values() for name in line.next(now_s)}
        return list(self._taken)

    def wait(self, names: Iterable[Name]) -> None:
        """Put messages of the last collect_waiting() back, to be asked about later."""
        for name in names:
            self._taken[name].wait((name,))

    def ask(self, messages: dict[Name, LeftMessage], now_s: float) -> None:
        """Ask about some of these messages now, where no question is open, and about the others later."""
        for is_client, line in self._lines.items():
            part = {name: left for name, left in messages.items() if is_clients(left.left_by) is is_client}
            line.ask(self._judge, part, now_s)
