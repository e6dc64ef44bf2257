"""A simulated partition of Kafka, the time, and the ways between it and stores: everything by one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

ANSWER_S = 1.2
"""A produce without an answer is given up after so long."""
FETCH_S = 0.8
FETCH_RECORDS = 40

Answer = Callable[[int | None], None]  # the offset; None: there was no answer
Fetched = Callable[[Sequence[tuple[int, bytes]], bool], None]


@dataclass
class SimulatedTime:
    """What happens when, in seconds."""

    now_s: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, event))

    def run_until(self, end_s: float) -> None:
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        self.now_s = end_s


@dataclass
class Trouble:
    """How likely a produce has which fate; the rest arrive at once, and their answers too."""

    lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    answer_lost: float = 0.0


QUIET = Trouble()


class SimulatedKafka:
    """One partition, and who can reach it."""

    def __init__(self, time: SimulatedTime, chance: random.Random) -> None:
        self.records: list[bytes] = []
        self.trouble = QUIET
        self.is_away = False
        self.cut_off: set[str] = set()  # names of stores that cannot reach it
        self._time, self._chance = time, chance
        self._newest_s: dict[str, float] = {}  # when a store's newest record arrives that is not late

    def reaches(self, name: str) -> bool:
        return not self.is_away and name not in self.cut_off

    def _delay_s(self) -> float:
        return 0.002 + 0.02 * self._chance.random()

    def _in_order_s(self, name: str) -> float:
        """In how long a record arrives: a connection keeps the order of what is not late."""
        at_s = max(self._time.now_s + self._delay_s(), self._newest_s.get(name, 0.0))
        self._newest_s[name] = at_s
        return at_s - self._time.now_s

    def produce(self, name: str, value: bytes, answer: Answer) -> None:
        """Send a record; `answer` is called once or, if the record was late, twice."""
        fate, trouble = self._chance.random(), self.trouble
        is_answered = [False]

        def answered(offset: int) -> None:
            is_answered[0] = True
            answer(offset)

        def arrives(is_told: bool) -> None:
            if self.reaches(name):
                offset = len(self.records)
                self.records.append(value)
                if is_told:
                    self._time.after(self._delay_s(), lambda: answered(offset))

        def given_up() -> None:
            if not is_answered[0]:
                answer(None)

        self._time.after(ANSWER_S, given_up)
        for bound, delay_s, is_told in self._fates(name, trouble):
            if fate < bound:
                for each in delay_s:
                    self._time.after(each, lambda: arrives(is_told))  # noqa: B023 - returns in this turn
                return

    def _fates(self, name: str, trouble: Trouble) -> list[tuple[float, list[float], bool]]:
        at_once, later = self._in_order_s(name), 0.3 + 8 * self._chance.random()
        bound = trouble.lost
        fates: list[tuple[float, list[float], bool]] = [(bound, [], False)]
        for share, delays_s, is_told in (
            (trouble.late, [later], True),
            (trouble.twice, [at_once, later], True),
            (trouble.answer_lost, [at_once], False),
        ):
            bound += share
            fates.append((bound, delays_s, is_told))
        return [*fates, (1.0, [at_once], True)]

    def fetch(self, name: str, offset: int, fetched: Fetched) -> None:
        """Read records from an offset on. Without an answer, nothing is called."""

        def reads() -> None:
            if self.reaches(name):
                found = list(enumerate(self.records[offset : offset + FETCH_RECORDS], offset))
                is_end = offset + len(found) >= len(self.records)
                self._time.after(self._delay_s(), lambda: fetched(found, is_end))

        self._time.after(self._delay_s(), reads)
