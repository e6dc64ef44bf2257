"""Verdicts of a consumer on their way to the store: joined per turn of the loop, sent again on a new connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from penstock.sdk.enrolment import Enrolment
from penstock.sdk.errors import ClientError, ConnectionLost, TimedOut
from penstock.sdk.hands import Answer, PendingVerdict, Place, SettledAs
from penstock.sdk.link import ClientLink
from store.wire import group_messages as wire
from store.wire.base import ITEMS_PER_FRAME
from store.wire.client.requests import Outcome
from store.wire.frames import Frame


class Verdicts:
    """Owner of the verdicts that the store has not answered."""

    def __init__(self, link: ClientLink, enrolment: Enrolment, sent: Callable[[], None]) -> None:
        """`sent` is called after each attempt to send, and after each answer."""
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._enrolment = enrolment
        self._sent = sent
        self.drained = asyncio.Event()  # the subscription is closed, and all verdicts are answered
        self._saying: dict[SettledAs, PendingVerdict] = {}  # in this turn of the loop
        self._unsent: list[PendingVerdict] = []
        self._unanswered: set[PendingVerdict] = set()

    def __bool__(self) -> bool:
        """Whether a verdict is not answered."""
        return bool(self._saying or self._unsent or self._unanswered)

    def add(self, verdict: SettledAs, places: Sequence[Place], is_known: bool = False) -> Answer:
        """Send it at the end of this turn of the loop. `is_known`: its places were added before."""
        said = self._saying.get(verdict)
        if said is None:
            said = PendingVerdict(verdict, monotonic() + self._link.requests.rules.timeout_s)
            is_absent = self._enrolment.ref is None
            is_late = self.drained.is_set() or (verdict.invisible_ms is not None and is_absent)
            if is_late or not places:
                said.answered([wire.Receipt(*place) for place in places])
                return Answer(said, places)
            if not self._saying:
                self._loop.call_soon(self.send)
            self._saying[verdict] = said
        if not is_known:
            for place in places:
                said.add(*place)
        return Answer(said, places)

    def send(self) -> None:
        """Send all verdicts of this turn and those that are unsent, if there is a connection."""
        self._unsent += self._saying.values()
        self._saying.clear()
        ref = self._enrolment.ref
        if ref is not None and self._link.requests.welcome is not None:
            unsent, self._unsent = self._unsent, []
            for said in unsent:
                self._ask(said, ref)
        self._sent()

    def _ask(self, said: PendingVerdict, ref: int) -> None:
        """Some thousand places at a time, which the store decodes quickly."""
        parts = said.collect_parts(ITEMS_PER_FRAME)
        self._unanswered.add(said)
        for part in parts:
            self._link.requests.ask_once(said.verdict.request(ref, part), partial(self._answered, said, part))

    def _answered(self, said: PendingVerdict, part: list[Place], outcome: Outcome, _: Frame) -> None:
        said.requests -= 1
        if isinstance(outcome, ConnectionLost):
            said.places += part  # they are sent again
        elif isinstance(outcome, wire.Settled):
            said.add_stale(outcome.stale)
        else:
            said.error = outcome if isinstance(outcome, Exception) else ClientError(f"{outcome} to an Ack")
        if said.requests:
            return
        self._unanswered.discard(said)
        if said.places:
            self._enrolment.lost()
            self._unsent.append(said)
        else:
            said.answered((), said.error)
            self._sent()

    def tick(self, now_s: float) -> None:
        """End the wait for verdicts that are beyond their deadline. They are sent all the same."""
        for said in (*self._unsent, *self._unanswered):
            if said.deadline_s <= now_s:
                is_absent = self._enrolment.ref is None
                away = self._link.requests.away if is_absent else "it is connected, and does not answer"
                said.gave_up(TimedOut(f"no answer from the store ({away}); the message may come again"))

    def fail(self, error: ClientError) -> None:
        for said in (*self._saying.values(), *self._unsent, *self._unanswered):
            said.answered((), error)
        self._saying.clear()
        self._unsent.clear()
        self._unanswered.clear()
        self.drained.set()
