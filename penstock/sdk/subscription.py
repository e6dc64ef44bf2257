"""A consumer of a group: it asks for messages before the program takes them, and sends the program's verdicts.

The speed of the program decides how many it asks for in advance (pace.py): none where each takes long, so that another
consumer can work on them. `prefetch` bounds all messages in hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from penstock.sdk.delivery import Deliveries, Delivery
from penstock.sdk.enrolment import AtStore, Enrolment
from penstock.sdk.errors import ClientError, ConnectionLost, StoreRefused, TimedOut
from penstock.sdk.hands import GIVE_BACK, Answer, Hand, Place, SettledAs
from penstock.sdk.in_hand import MessagesInHand, until_s
from penstock.sdk.link import ClientLink
from penstock.sdk.pace import TakingPace
from penstock.sdk.verdicts import Verdicts
from store.state.consumer_work import ConsumerWork
from store.state.group_settings import GroupSettings
from store.wire import group_messages as wire
from store.wire.client.requests import Outcome
from store.wire.frames import Frame
from store.wire.handshake import PLACING_VERSION, WORK_VERSION, tags_version
from store.wire.messages import FailureCode, Welcome, WireMessage

log = logging.getLogger("penstock.client")

_Told = TypeVar("_Told", bound=WireMessage)

LACKS_HISTORY = (
    "group %s over %s begins without what was stored before: only a topic and LEVEL/# have a queue of all of it; say "
    "start='now' if that is meant, or read(%r) the history"
)
WAIT_MS = 10_000  # a request for messages is asked again after so long
ANSWER_BYTES = 1 << 20
MOST_PER_ANSWER = 2_000
PREFETCH = 2_000
SURE_SHARE = 0.9  # of the invisible time: a message that the program has not taken by then goes back


class WantedMessages(NamedTuple):
    """Which messages."""

    topic_filter: str
    group: str
    consumer: str  # what this client calls it
    settings: GroupSettings | None
    start: str
    prefetch: int
    or_refuse: bool = False  # the store refuses a `start` that it no longer has
    tag: str | None = None  # of the group; None: as the group has it


class GroupPosition(NamedTuple):
    """Where a group is. `log`: which log the store has; `began`: where it has the group's making, or last reset."""

    log: str
    began: int
    acked_offset: int
    """All messages with a smaller group_offset are done with."""


class Stage(Enum):
    """Where a subscription is in its life. TRANSITIONS says what follows what."""

    NEW = "nothing was asked of the store"
    RUNNING = "messages are asked for"
    STOPPED = "no more messages are asked for; those that are worked on stay this consumer's"
    CLOSED = "what is in hand goes back"


TRANSITIONS: Mapping[Stage, Mapping[Stage, str]] = {
    Stage.NEW: {
        Stage.RUNNING: "the program enters it, or asks for a message",
        Stage.STOPPED: "stop()",
        Stage.CLOSED: "close()",
    },
    Stage.RUNNING: {Stage.STOPPED: "stop()", Stage.CLOSED: "close(), or the store refused"},
    Stage.STOPPED: {Stage.CLOSED: "close(), or the store refused"},
    Stage.CLOSED: {},
}
"""Which stage may follow which, and when. docs/sdk.md has it as a picture."""


class Closer(Enum):
    """Which part of the program closes a subscription."""

    LOOP = "the loop over its messages, when it ends"
    BLOCK = "the `async with` block"


class AwaitableEnd:
    """What close() and stop() give, which have begun: a program may await the end, and need not."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._wait().__await__()


class Subscription:
    """The messages of a group: iterate over it, or over its batches(); `async with` says when it ends.

    Without `async with` it ends with the loop. Messages that are not acked by then go to other consumers at once.
    """

    def __init__(self, link: ClientLink, wanted: WantedMessages) -> None:
        self._link = link
        self._wanted = wanted
        self._has_offsets = not set("+#") & set(wanted.topic_filter)
        self._loop = asyncio.get_running_loop()
        self._enrolment = Enrolment()
        self._invisible_s = 0.0
        self._store_name = ""
        self._stage = Stage.NEW
        self._closer = Closer.LOOP
        self._is_waiting = False  # the program waits for a message
        self._error: Exception | None = None
        self._opened = asyncio.Event()  # once, or failed
        self._came = asyncio.Event()
        self._takes_no_more = asyncio.Event()
        self._asks_for_history = True  # a store that lacks some says so
        self.lacks_history = False
        """Whether it made its group without a `start`, and what was stored before is not in the group, as the queue of
        its filter does not have it. Known once it is entered, or has a message; Client.read() has that history."""
        self._in_hand = MessagesInHand(self._say_of_all)
        self._seen = 0  # the last serial that came from the store
        self._pace = TakingPace(wanted.prefetch)
        self._verdicts = Verdicts(link, self._enrolment, self._finish_if_done)

    # --- coming and going

    async def __aenter__(self) -> Self:
        """The group is there, and this is a consumer of it. Raises StoreRefused, TimedOut."""
        self._closer = Closer.BLOCK
        self._begin()
        try:
            async with asyncio.timeout(self._link.requests.rules.timeout_s):
                await self._opened.wait()
        except TimeoutError:
            self.close()
            raise TimedOut(f"subscribe: no answer from the store ({self._link.requests.away})") from None
        if self._error is not None:
            raise self._error
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give back the messages in hand, and wait for the answers to all verdicts (for the client's `timeout_s`)."""
        self.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._link.requests.rules.timeout_s):
                await self._verdicts.drained.wait()

    def _begin(self) -> None:
        if self._is_begun or self._stage is Stage.CLOSED:
            return
        if self._stage is Stage.NEW:
            self._enter(Stage.RUNNING)
        self._link.readings.add(self)
        self._open()

    @property
    def _is_begun(self) -> bool:
        """Whether the store was asked for the group, and is not done with it."""
        return self in self._link.readings

    @property
    def _is_over(self) -> bool:
        """Whether no more messages are taken."""
        return self._stage in (Stage.STOPPED, Stage.CLOSED)

    def _enter(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self._stage], f"{self._stage} -> {stage}"
        self._stage = stage

    def close(self) -> AwaitableEnd:
        """Give back what is in hand. Awaited, as aclose()."""
        if self._stage is not Stage.CLOSED:
            self._close()
        return AwaitableEnd(self.aclose)

    def _close(self) -> None:
        self._enter(Stage.CLOSED)
        self._take_no_more()
        if not self._is_begun:
            self._opened.set()
            self._verdicts.drained.set()
        self._verdicts.send()

    def stop(self) -> AwaitableEnd:
        """Loops over it end, once what is being worked on is done; from any thread or a signal handler. Awaited: until
        no more messages are taken; it does not wait for the loops.
        """
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop)
        return AwaitableEnd(self._takes_no_more.wait)

    def _stop(self) -> None:
        """Take nothing more. What is being worked on stays this consumer's until it is closed."""
        if not self._is_over:
            self._enter(Stage.STOPPED)
        self._take_no_more()

    def _take_no_more(self) -> None:
        self._give_back()
        self._takes_no_more.set()
        self._came.set()

    def _give_back(self) -> None:
        """Give messages that the program has not taken to other consumers. This delivery of them does not count."""
        self._in_hand.give_back()
        self._pace.reset()

    # --- taking

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[Delivery, None]:
        try:
            async for portion in self.portions():
                for delivery in portion:
                    yield delivery
        finally:
            self._leave()

    async def portions(self) -> AsyncGenerator[Iterator[Delivery], None]:
        """The same messages as iterators, to be taken up one after the other."""
        try:
            while True:
                yield self._in_time()
                if self._in_hand.has_rest:
                    self._give_back()
                batch = await self._next()
                if batch is None:
                    return
                self._in_hand.begin(batch)
        finally:
            self._leave()

    def _in_time(self) -> Iterator[Delivery]:
        """The rest of the batch, but no more of it once that takes too long."""
        pace = self._pace
        for delivery in self._in_hand.rest():
            yield delivery
            if monotonic() > pace.patience_s or self._is_away:
                return

    async def batches(self) -> AsyncGenerator[Deliveries, None]:
        """The same messages as they come from the store, each decoded when it is looked at; to be settled as one."""
        try:
            while (batch := await self._next()) is not None:
                yield batch
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._closer is Closer.LOOP:
            self.close()

    async def _next(self) -> Deliveries | None:
        """The next batch; None once it is closed. Raises a ClientError."""
        self._pace.measure()
        await asyncio.sleep(0)  # verdicts go out, messages come in
        try:
            while True:
                if self._error is not None:
                    raise self._error
                if self._is_over:
                    return None
                self._begin()
                batch = self._take()
                if batch is not None:
                    self._pop()
                    return batch
                self._is_waiting = True
                self._pop()
                self._came.clear()
                await self._came.wait()
        finally:
            self._is_waiting = False

    @property
    def _is_away(self) -> bool:
        """Whether the store may be another process by now, which hands the messages here that are not acked out again.

        The program gets none of them before that is known: another consumer may have finished them.
        """
        return self._enrolment.state is AtStore.ABSENT or self._link.requests.welcome is None

    def _take(self) -> Deliveries | None:
        if self._is_away:
            return None
        now_s = monotonic()
        batch = self._in_hand.next_batch(now_s)
        if batch is not None:
            self._pace.took(len(batch), now_s, until_s(batch))
        return batch

    async def position(self) -> GroupPosition:
        """Where its group is, once the store has all that was handed out here.

        Raises StoreRefused (it is too old to say), TimedOut, ConnectionLost.
        """
        answer, welcome = await self._ask(wire.GroupWhere, wire.GroupIs, PLACING_VERSION)
        log_name = welcome.log_identity.hex()
        return GroupPosition(log_name, answer.began, answer.acked_offset)

    async def tell_work(self, work: ConsumerWork) -> bool:
        """Say how the consumer's work goes, for people to see. Whether its group is paused. Raises as position()."""
        answer, _ = await self._ask(lambda ref: wire.TellWork(ref, work), wire.WorkNoted, WORK_VERSION)
        return answer.paused

    async def _ask(
        self, request: Callable[[int], WireMessage], expected: type[_Told], version: int
    ) -> tuple[_Told, Welcome]:
        """Ask something about the consumer, once the store knows it; a store below a version cannot answer."""
        requests = self._link.requests
        found: asyncio.Future[Outcome] = self._loop.create_future()
        try:
            async with asyncio.timeout(requests.rules.timeout_s):
                await self._opened.wait()
                welcome = requests.welcome
                if welcome is None or self._enrolment.ref is None:
                    raise ConnectionLost(requests.away)
                asked = request(self._enrolment.ref)
                name = type(asked).__name__
                if welcome.version < version:
                    text = f"it is older than this client and does not know {name}; upgrade the store"
                    raise StoreRefused(FailureCode.BAD_REQUEST, text)
                requests.ask_once(asked, lambda outcome, _: None if found.done() else found.set_result(outcome))
                answer = await found
        except TimeoutError:
            raise TimedOut(f"{expected.__name__}: no answer from the store ({requests.away})") from None
        if not isinstance(answer, expected):
            raise answer if isinstance(answer, Exception) else ClientError(f"{answer} to a {name}")
        return answer, welcome

    # --- the connection

    def _open(self) -> None:
        """Become a consumer of the group, also on a new connection."""
        requests = self._link.requests
        self._enrolment.lost()
        if requests.welcome is None:
            return
        welcome, wanted = requests.welcome, self._wanted
        if wanted.tag is not None and welcome.version < tags_version(wanted.tag):
            why = "it is older than tags of groups, or their priorities; upgrade the store"
            self.fail(StoreRefused(FailureCode.BAD_REQUEST, why))
            return

        def opened(outcome: Outcome, _: Frame) -> None:
            if self._is_history_refused(outcome):
                self._asks_for_history = False
                self._open()
            elif isinstance(outcome, wire.GroupOpened):
                self._opened_at(outcome, welcome.store_name if welcome.resumed else "")
                self._store_name = welcome.store_name
            elif not isinstance(outcome, ConnectionLost):
                self.fail(outcome if isinstance(outcome, Exception) else ClientError(f"{outcome} to a GroupOpen"))

        open_ = wire.GroupOpen(
            wanted.group,
            wanted.topic_filter,
            wanted.consumer,
            wanted.settings,
            wanted.start,
            or_refuse=wanted.or_refuse or self._asks_for_history,
            tag=wanted.tag,
        )
        requests.ask_once(open_, opened)

    def _is_history_refused(self, outcome: Outcome) -> bool:
        """Whether the store may lack history that nobody insists on; or it refuses the same again without."""
        is_refused = isinstance(outcome, StoreRefused) and outcome.code == FailureCode.NOT_ALLOWED
        return is_refused and self._asks_for_history and not self._wanted.or_refuse

    def _opened_at(self, opened: wire.GroupOpened, resumed: str) -> None:
        """`resumed`: the name of the store if it still knows this client as a consumer."""
        self._enrolment.opened(opened.ref)
        self._invisible_s = opened.settings.invisible_ms / 1000
        if not self._asks_for_history and not self.lacks_history:
            self.lacks_history = True
            log.warning(LACKS_HISTORY, self._wanted.group, self._wanted.topic_filter, self._wanted.topic_filter)
        if self._store_name not in ("", resumed):
            self._give_back()  # they may be other consumers' by now
        self._opened.set()
        self._came.set()
        self._pop()
        self._verdicts.send()

    def reconnected(self) -> None:
        self._open()

    def fail(self, error: Exception) -> None:
        """It is over. A loop that was ended before ends without an error."""
        error = error if isinstance(error, ClientError) else ClientError(str(error))
        if not self._is_over:
            self._error = error
        if self._stage is not Stage.CLOSED:
            self._enter(Stage.CLOSED)
        self._link.readings.discard(self)
        self._verdicts.fail(error)
        for event in (self._opened, self._came, self._takes_no_more):
            event.set()

    def grew(self, refs: set[int]) -> None:
        """Not a queue that it follows."""

    def tick(self) -> None:
        now_s = monotonic()
        self._verdicts.tick(now_s)
        if self._pace.is_overdue(now_s) and self._in_hand.has_untaken:
            self._give_back()
        if self._is_waiting and self._in_hand.unsettled >= self._wanted.prefetch:
            self._in_hand.forget_late(now_s)
            self._pop()

    # --- asking for messages

    def _pop(self) -> None:
        """Ask for messages, if more are wanted."""
        ref = self._enrolment.ref
        if ref is None or self._is_away or self._enrolment.state is AtStore.ASKED or self._is_over:
            return
        room, buffered = self._wanted.prefetch - self._in_hand.unsettled, self._in_hand.buffered
        wanted = min(max(self._pace.ahead, int(self._is_waiting)) - buffered, room, MOST_PER_ANSWER)
        if wanted < 1 or (not self._is_waiting and 2 * buffered > self._pace.ahead):
            return
        self._enrolment.asked()
        pop = wire.Pop(ref, wanted, ANSWER_BYTES, 0, WAIT_MS)
        self._link.requests.ask_once(pop, self._popped)

    def _popped(self, outcome: Outcome, frame: Frame) -> None:
        if isinstance(outcome, ConnectionLost):
            self._enrolment.lost()
            return
        self._enrolment.answered()
        if not isinstance(outcome, wire.Popped):
            self.fail(outcome if isinstance(outcome, Exception) else ClientError(f"{outcome} to a Pop"))
            return
        if outcome.handed:
            self._seen = outcome.handed[-1][0]
            sure_s = monotonic() + SURE_SHARE * self._invisible_s
            hands = [Hand(handed, sure_s, self._say) for handed in outcome.handed]
            batch = Deliveries(frame.records, hands, self._has_offsets, self._link.place, self._say_of_all)
            self._in_hand.came(batch)
            if self._is_over or not (self._pace.ahead or self._is_waiting):
                self._say_of_all(hands, GIVE_BACK)  # the program wants no more
                return
            self._in_hand.buffer(batch)
            self._came.set()
        self._pop()

    # --- verdicts

    def _say(self, hand: Hand, verdict: SettledAs, places: Sequence[Place]) -> Answer:
        """Take the verdict on some messages of a hand."""
        if verdict.invisible_ms is not None:
            hand.until_s = max(hand.until_s, monotonic() + verdict.invisible_ms / 1000)
        elif self._in_hand.settled(hand, places) and self._is_waiting:
            self._pop()
        return self._verdicts.add(verdict, places)

    def _say_of_all(self, hands: Sequence[Hand], verdict: SettledAs) -> Answer:
        """Take one verdict on all messages of some hands that are not settled."""
        places: list[Place] = []
        for hand in hands:
            rest = hand.settle_rest(verdict)
            self._say(hand, verdict, rest)
            places += rest
        return self._verdicts.add(verdict, places, is_known=True)

    def _finish_if_done(self) -> None:
        if self._stage is not Stage.CLOSED or self._verdicts:
            return
        self._verdicts.drained.set()
        if self._enrolment.ref is not None:
            self._link.requests.tell_first(wire.GroupClose(self._enrolment.ref, self._seen))
            self._link.readings.discard(self)
            self._enrolment.lost()
