"""The tier of a store: who serves history that the log does not have any more, and what it is asked."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Literal

from lightqueue.message_store import MessageStore
from store.wire.tier_messages import TierAnswer, TierAsked, TierFault, TierQuestion

TIER_READER: Final = "tier"
"""The name under which the tier holds the log: it has all before the place where this reader stands."""
MOST_WAITING: Final = 1_000
PATIENCE_S: Final = 15.0  # with a tier that is not connected: it may be starting
ANSWER_S: Final = 60.0  # for one question: its storage may be slow
MOST_TRIES: Final = 8  # all workers of a process end at once, one after the other

TierPolicy = Literal["not_in_log", "force", "disabled"]
Then = Callable[[TierAnswer, bytes], None]
Give = Callable[[TierAsked], object]


@dataclass(slots=True, eq=False)
class _Asked:
    """A question, how much of an answer there is room for, and until when it may wait. `is_ready`: whether who asks can
    take an answer now."""

    question: TierQuestion
    limit_bytes: int
    then: Then
    is_ready: Callable[[], bool]
    until_s: float
    tries: int = 0


def _always() -> bool:
    return True


class Tier:
    """Owner of the workers that can take a question, and of the questions that wait for an answer. A worker is a
    connection, and has one question at a time."""

    def __init__(
        self,
        messages: MessageStore,
        policy: TierPolicy = "not_in_log",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: monotonic seconds."""
        self._log = messages.log
        self._states = messages.log_readers
        self._policy = policy
        self._clock = clock
        self._first: int | None = None  # where the table begins, as a worker said last
        self._url = ""  # where it is, likewise
        self._idle: OrderedDict[Hashable, Give] = OrderedDict()
        self._waiting: OrderedDict[int, _Asked] = OrderedDict()
        self._given: dict[Hashable, tuple[int, _Asked]] = {}
        self._refused: list[Then] = []  # are told so with the next tick: who asks again at once is held up
        self._newest = 0
        self.most_bytes = 1 << 20  # of the records of an answer: what a frame of the wire has room for

    # --- what it has

    @property
    def is_served(self) -> bool:
        """Whether a worker is connected."""
        return bool(self._idle or self._given)

    @property
    def url(self) -> str | None:
        """The place of the table, for readers of its files, whatever `tier.reads` says; empty: there is
        no tier. None: only the tier knows, and is away."""
        if self.is_served:
            return self._url or None
        return None if self._states.get(TIER_READER) is not None else ""

    @property
    def seam(self) -> int:
        """log_offset where the log takes over: what stands before is read in the tier."""
        state = self._states.get(TIER_READER)
        if state is None or self._policy == "disabled":
            return self._log.first
        if self._policy == "force":
            return max(self._log.first, min(state.log_offset, self._log.end))
        return self._log.first

    @property
    def first(self) -> int | None:
        """log_offset where history begins, in the tier or in the log; None: only the tier knows, and is away."""
        if not self.has_more:
            return self._log.first
        return None if self._first is None or not self.is_served else min(self._first, self.seam)

    @property
    def has_more(self) -> bool:
        """Whether the tier has history that the store reads there. Before the tier says where it begins: perhaps."""
        if self._policy == "disabled" or self._states.get(TIER_READER) is None:
            return False
        is_dropped = self._log.base > 0 and (self._first is None or self._first < self._log.first)
        return is_dropped or self._policy == "force"

    def has(self, log_offset: int) -> bool:
        """Whether the store reads this log_offset in the tier."""
        return log_offset < self.seam and self.has_more

    # --- questions

    def ask(self, question: TierQuestion, limit_bytes: int, then: Then, is_ready: Callable[[], bool] = _always) -> None:
        """`then` is called once, later, with the answer and its records."""
        if len(self._waiting) >= MOST_WAITING:
            self._refused.append(then)
            return
        self._newest += 1
        patience_s = ANSWER_S if self.is_served else PATIENCE_S
        limit_bytes = min(limit_bytes, self.most_bytes)
        self._waiting[self._newest] = _Asked(question, limit_bytes, then, is_ready, self._clock() + patience_s)
        self._hand_out()

    def _hand_out(self) -> None:
        """Give questions to workers that wait for one, in their order. Those whose asker has no room stay."""
        if not self._idle or not self._waiting:
            return
        for number, asked in list(self._waiting.items()):
            if not self._idle:
                return
            if asked.is_ready():
                del self._waiting[number]
                worker, give = self._idle.popitem(last=False)
                asked.tries += 1
                asked.until_s = self._clock() + ANSWER_S
                self._given[worker] = number, asked
                give(TierAsked(number, asked.limit_bytes, asked.question))

    def serve(self, worker: Hashable, first: int, give: Give, url: str = "") -> None:
        """A worker can take a question now. The table is at `url` and begins at log_offset `first`."""
        self._first, self._url = first, url
        self._idle[worker] = give
        self._hand_out()

    def answered(self, worker: Hashable, number: int, answer: TierAnswer, records: bytes) -> None:
        """Take a worker's answer; one whose question was given up is ignored."""
        given = self._given.pop(worker, None)
        if given is None or given[0] != number:
            return
        given[1].then(answer, records)

    def left(self, worker: Hashable) -> None:
        """The connection of a worker ended. Its question is given to another one."""
        self._idle.pop(worker, None)
        number, asked = self._given.pop(worker, (0, None))
        if asked is None or not number:
            return
        if asked.tries >= MOST_TRIES:
            self._fail(asked, "the tier ends whenever it reads this; its log says why")
            return
        asked.until_s = self._clock() + PATIENCE_S
        self._waiting[number] = asked
        self._waiting.move_to_end(number, last=False)
        self._hand_out()

    def tick(self) -> None:
        """Call this several times a second: give up what waits for too long, go on with those who can be answered
        again."""
        now_s = self._clock()
        refused, self._refused = self._refused, []
        for then in refused:
            then(TierFault(f"{MOST_WAITING} reads of the tier wait already; try again later"), b"")
        if self._waiting:
            self._hand_out()
        for number, asked in list(self._waiting.items()):
            if asked.until_s <= now_s:
                del self._waiting[number]
                self._fail(asked, self.why_not)
        for worker, (_, asked) in list(self._given.items()):
            if asked.until_s <= now_s:
                self._given[worker] = 0, asked  # a late answer is ignored
                asked.until_s = float("inf")
                self._fail(asked, f"the tier has not answered for {ANSWER_S:.0f} s; is its storage there?")

    @property
    def why_not(self) -> str:
        """The reason why there is no answer, and the remedy."""
        if self.is_served:
            return "the tier has no time for it; try again later"
        return (
            f"history before log_offset {self.seam} lies in the tier, and no `penstock tier` is connected to serve it: "
            "start it, or read from there on; `penstock store forget-reader tier` says that there is none any more"
        )

    def _fail(self, asked: _Asked, why: str) -> None:
        asked.then(TierFault(why), b"")
