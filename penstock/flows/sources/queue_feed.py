"""Messages of a queue on their way into the store: each with an id once, and in the queue's order.

One Append has messages and what they are known by (known_ids.py), so no kill comes between the two. On a new
connection the feed appends a mark until the store says that it was new to it: everything that an earlier connection
under its name appended stands before that. So what it then reads is all that is there. One Append at a time is without
an answer, and a message is settled with the broker once the store has answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, cast

from penstock.flows.counts import FlowCounts
from penstock.flows.definition import Flow
from penstock.flows.errors import Unfit
from penstock.flows.sources.known_ids import DIGEST_BYTES, KnownIds
from penstock.flows.sources.messages import ToStore
from penstock.flows.sources.partition import OF_THE_MESSAGE, Appends
from penstock.sdk.batch import Make
from penstock.sdk.errors import BadMessage, ClientError, ConnectionLost, StoreRefused
from penstock.sdk.group_options import MOST_WHY_CHARACTERS
from penstock.sdk.outgoing import Outgoing, PublishLater
from penstock.sdk.publishing import PACK_BYTES, batch_bytes, changes_of, pack_changes
from store.wire.messages import FailureCode

log = logging.getLogger("penstock.flows")

MOST_MESSAGES: Final = 500  # in one Append
PAUSE_S: Final = 0.5  # before the store is asked again that takes nothing
SAID_S: Final = 60.0
MOST_SAID: Final = 20  # rejected messages that the log names in SAID_S

Settle = Callable[[int, Sequence[int]], Awaitable[None]]
"""Reject the second ones, by their tags, then acknowledge all others up to the first one; 0: none."""


class Queued(Protocol):
    """A message that a broker has until it is settled. It is known by its digest."""

    tag: int
    """By which its connection settles it."""
    digest: bytes

    def __len__(self) -> int: ...

    @property
    def named(self) -> str:
        """As the log names it."""


M = TypeVar("M", bound=Queued)


class QueuePack(NamedTuple, Generic[M]):
    """The first messages that are in hand, and what becomes of them."""

    taken: int
    records: bytes  # of the log; empty if there is nothing to store
    digests: list[bytes]
    letters: int  # among those
    rejected: list[tuple[M, str]]


class StoredForm(NamedTuple, Generic[M]):
    """What is stored of a queue's messages."""

    of: Callable[[M], ToStore | None]
    """Of one message; None: it is left out. Raises Unfit."""
    letter: Callable[[M, str, bool], ToStore] | None = None
    """Of one that can never be stored, with the reason, and with its payload or without. Without letters such a message
    is rejected, and the broker's."""


class QueueFeed(Generic[M]):
    """Owner of the messages of a queue that are in hand."""

    def __init__(
        self,
        flow: Flow,
        make: Make,
        appends: Appends,
        known: KnownIds,
        counts: FlowCounts,
        form: StoredForm[M],
    ) -> None:
        """`make` makes the log's message of a form."""
        self.why_waiting = ""
        """Why the store takes nothing; empty: it does."""
        self.in_hand_bytes = 0
        self._flow, self._make, self._appends, self._counts = flow, make, appends, counts
        self._known, self._form = known, form
        self._refusals: dict[int, str] = {}  # by the tags of messages that the store refused, why
        self._messages: deque[M] = deque()
        self._settle: Settle | None = None
        self._came = asyncio.Event()
        self._careful = 0  # so many go one by one, as one of them was refused
        self._said, self._said_s = 0, 0.0

    @property
    def in_hand(self) -> int:
        return len(self._messages)

    def begin(self, settle: Settle) -> None:
        """A connection to the broker brings messages from now on, and settles them."""
        self._settle = settle
        self._came.set()

    def add(self, message: M) -> None:
        self._messages.append(message)
        self.in_hand_bytes += len(message)
        self._came.set()

    def clear(self) -> None:
        """That connection is over: what is in hand comes again."""
        self._settle = None
        self._messages.clear()
        self.in_hand_bytes = 0
        self._refusals.clear()
        self._careful = 0

    async def run(self) -> None:
        """Until cancelled. Raises StoreRefused where the flow may not store what it knows messages by."""
        while True:
            try:
                number = await self._learn()
                while True:
                    await self._some()
                    number = await self._next(number)
            except ConnectionLost as error:
                self.why_waiting = str(error)

    # --- a new connection to the store

    async def _learn(self) -> int:
        """Returns a number up to which everything is known. Raises ConnectionLost, StoreRefused."""
        number = await self._appends.connected()
        mark, payload = self._known.mark()
        is_new = False
        while not is_new:
            number += 1
            try:
                is_new = await self._appends.append(number, mark.record)
            except StoreRefused as error:
                if error.code == FailureCode.NOT_PERMITTED:
                    raise
                number -= 1
                await self._wait(error)
        while True:
            try:
                if await self._known.learn(payload):
                    return number
            except ClientError as error:
                if isinstance(error, StoreRefused) and error.code == FailureCode.NOT_PERMITTED:
                    raise
                await self._wait(error)
            _ = self._appends.welcome
            await asyncio.sleep(PAUSE_S)

    async def _wait(self, error: Exception) -> None:
        if str(error) != self.why_waiting:
            log.warning("flow %s: %s; it is tried again", self._flow.name, error)
        self.why_waiting = str(error)
        self._counts.note(str(error))
        await asyncio.sleep(PAUSE_S)

    # --- sending

    async def _some(self) -> None:
        """Wait for messages, and for who settles them."""
        while not self._messages or self._settle is None:
            self._came.clear()
            await self._came.wait()

    async def _next(self, number: int) -> int:
        """Settle the first messages in hand. Returns the number up to which the store has everything. Raises
        ConnectionLost."""
        pack = self._pack(1 if self._careful else MOST_MESSAGES)
        settle, first = self._settle, self._messages[0]
        if pack.records:
            try:
                is_new = await self._appends.append(number + 1, pack.records)
            except StoreRefused as error:
                if settle is self._settle and not await self._refused(pack, error):
                    return number
                if settle is not self._settle:
                    return number
                if self._form.letter is not None and first.tag not in self._refusals:
                    self._refusals[first.tag] = str(error)  # its letter comes next
                    return number
                pack = pack._replace(digests=[], letters=0, rejected=[(first, str(error))])
            else:
                if not is_new:  # another process was there in between
                    raise ConnectionLost("another process has stored messages of this flow")
                number += 1
                self.why_waiting = ""
                self._known.note(pack.digests)
                self._counts.sent += len(pack.digests) - pack.letters
                self._counts.dead += pack.letters
        if settle is not None and settle is self._settle:
            await self._settled(pack, settle)
        return number

    async def _refused(self, pack: QueuePack[M], error: StoreRefused) -> bool:
        """Whether its message, which is the only one, is given up."""
        if error.code not in OF_THE_MESSAGE:
            await self._wait(error)
            return False
        if pack.taken > 1:  # which of them is it?
            self._careful = pack.taken
            return False
        return True

    async def _settled(self, pack: QueuePack[M], settle: Settle) -> None:
        done = [self._messages.popleft() for _ in range(pack.taken)]
        self.in_hand_bytes -= sum(map(len, done))
        self._careful = max(0, self._careful - pack.taken)
        self._counts.taken += pack.taken
        self._counts.passed += len(pack.digests) + len(pack.rejected)
        rejected = [message.tag for message, _ in pack.rejected]
        for message, reason in pack.rejected:
            self._tell(message, reason)
        for message in done if self._refusals else ():
            self._refusals.pop(message.tag, None)
        is_rejected = set(rejected)
        acked = max((message.tag for message in done if message.tag not in is_rejected), default=0)
        await settle(acked, rejected)

    def _tell(self, message: M, reason: str) -> None:
        self._counts.dead += 1
        self._counts.note(reason)
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_s > SAID_S or not self._said_s:
            self._said, self._said_s = 0, now_s
        self._said += 1
        if self._said > MOST_SAID:
            return
        rest = "; more of them are not named for a while" if self._said == MOST_SAID else ""
        log.error("flow %s: %s is rejected, and not given back: %s%s", self._flow.name, message.named, reason, rest)

    # --- making

    def _pack(self, most: int) -> QueuePack[M]:
        """Of the messages in hand, of which there are some."""
        welcome = self._appends.welcome
        most_bytes = min(PACK_BYTES, batch_bytes(welcome))
        ids = self._known.message([bytes(DIGEST_BYTES)] * most)
        left_bytes: float = most_bytes - len(ids.record)
        most_record_bytes = batch_bytes(welcome) - len(self._known.message([bytes(DIGEST_BYTES)]).record)
        left_changes = pack_changes(welcome) - changes_of(ids)
        parts: list[bytes] = []
        digests: dict[bytes, None] = {}
        rejected: list[tuple[M, str]] = []
        taken, letters, topic = 0, 0, None
        for message in self._messages:
            if taken == most:
                break
            if message.digest not in self._known and message.digest not in digests:
                is_letter = False
                try:
                    made = self._made(message, most_record_bytes)
                except (Unfit, BadMessage, StoreRefused) as error:
                    made = self._letter_of(message, str(error), most_record_bytes)
                    is_letter = made is not None
                    if made is None:
                        rejected.append((message, str(error)))
                if made is not None:
                    changes = changes_of(made) if made.topic != topic else 0
                    left_bytes -= len(made.record)
                    left_changes -= changes
                    if parts and (left_bytes < 0 or left_changes < 0):
                        break
                    parts.append(made.record)
                    topic = made.topic
                    letters += is_letter
                    digests[message.digest] = None
            taken += 1
        records = self._known.message(digests).record + b"".join(parts) if parts else b""
        return QueuePack(taken, records, list(digests), letters, rejected)

    def _made(self, message: M, most_bytes: int) -> Outgoing | None:
        """None: it is left out. Raises Unfit, BadMessage, StoreRefused."""
        if refusal := self._refusals.get(message.tag):
            raise BadMessage(refusal)
        made = self._form.of(message)
        return None if made is None else self._fitting(made, most_bytes)

    def _letter_of(self, message: M, reason: str, most_bytes: int) -> Outgoing | None:
        """None: there are none, or not even that can be stored."""
        letter = self._form.letter
        if letter is None:
            return None
        for with_payload in (True, False):
            try:
                found = self._fitting(letter(message, reason[:MOST_WHY_CHARACTERS], with_payload), most_bytes)
            except (BadMessage, StoreRefused):
                continue
            self._counts.note(reason)
            return found
        return None

    def _fitting(self, made: ToStore, most_bytes: int) -> Outgoing:
        """Raises BadMessage, StoreRefused."""
        topic, payload, options = made
        found = self._make(topic, payload, cast(PublishLater, {**options}))
        if len(found.record) > most_bytes:
            raise BadMessage(
                f"a message of {len(found.record)} bytes; it takes {most_bytes}: raise wire.max_frame_bytes"
            )
        return found
