"""One partition of a Kafka topic on its way into the store: each record once, in its order.

A partition is a peer of the store, with a name of its own, and an Append has the number of its last record, which is
offset + 1. So the store itself says where to go on, and no kill comes between a message and its position. Two rules
make it exact, as an Append has many records and two processes do not cut them alike:

- On a new connection records are stored one by one until the store says that one was new to it. From then on it has
  nothing that this process does not know of.
- One Append at a time is without an answer. So a refused one has no successors.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol, cast

from penstock.flows.counts import FlowCounts
from penstock.flows.definition import Flow
from penstock.flows.errors import Unfit
from penstock.flows.sources.messages import ToStore, letter_of, message_of
from penstock.flows.sources.records import KafkaRecord
from penstock.sdk.batch import Make
from penstock.sdk.errors import BadMessage, ConnectionLost, StoreRefused
from penstock.sdk.group_options import MOST_WHY_CHARACTERS
from penstock.sdk.outgoing import Outgoing, PublishLater
from penstock.sdk.publishing import PACK_BYTES, batch_bytes, changes_of, pack_changes
from store.wire.messages import FailureCode, Welcome

log = logging.getLogger("penstock.flows")

MOST_RECORDS: Final = 500  # in one Append
PAUSE_S: Final = 0.5  # before the store is asked again that takes nothing
PROGRESS_S: Final = 5.0  # in which the store is told how far a flow has come that lets nothing through
OF_THE_MESSAGE: Final = (FailureCode.BAD_REQUEST, FailureCode.RECORD_TOO_LARGE, FailureCode.NOT_PERMITTED)


class Appends(Protocol):
    """A peer of the store, as NumberedAppends."""

    @property
    def welcome(self) -> Welcome: ...

    async def connected(self) -> int: ...

    def append(self, number: int, records: bytes) -> asyncio.Future[bool]: ...


class FeedPack(NamedTuple):
    """The first records that are in hand, as one Append."""

    taken: int  # records
    end: int  # the offset after them
    records: bytes  # of the log; empty if all were left out
    stored: int
    letters: int


class PartitionOwner(Protocol):
    """The owner of all feeds of a topic."""

    async def start_of(self, partition: int) -> int:
        """Where a partition begins that the store does not know."""

    def settled(self, count: int, size_bytes: int) -> None:
        """So many records, and bytes, are not in hand any more."""


class PartitionFeed:
    """Owner of the records of one partition that are in hand, and of how far it has come."""

    def __init__(
        self,
        flow: Flow,
        partition: int,
        make: Make,
        appends: Appends,
        counts: FlowCounts,
        owner: PartitionOwner,
    ) -> None:
        """`make`: what is stored of a message."""
        self.partition = partition
        self.begun = asyncio.Event()  # it is known where it begins, and the store knows it as well
        self.fetch_from: int | None = None
        """Where the consumer has to go on; None: it is where it should be."""
        self.fetched = 0
        """After the last record that came."""
        self.position = 0
        """Of the first record that is not settled."""
        self.why_waiting = ""
        """Why the store takes nothing; empty: it does."""
        self._flow, self._make, self._appends, self._counts = flow, make, appends, counts
        self._owner = owner
        self._records: deque[KafkaRecord] = deque()
        self.in_hand_bytes = 0
        self._under_way = 0  # so many of the first ones may be in an Append
        self._came = asyncio.Event()
        self._told = 0  # how far the store knows
        self._told_s = 0.0
        self._careful_until = 0  # up to here records go one by one

    @property
    def in_hand(self) -> int:
        return len(self._records)

    def add(self, records: Sequence[KafkaRecord]) -> None:
        """What the consumer read. Dropped if it is about to be read again."""
        if self.fetch_from is not None:
            self._owner.settled(len(records), sum(map(len, records)))
            return
        self.fetched = records[-1].offset + 1
        self._records.extend(records)
        self.in_hand_bytes += sum(map(len, records))
        self._came.set()

    def cut(self, most: int, most_bytes: int) -> None:
        """Drop what stands after the first `most` records, or `most_bytes`, but nothing that is under way.

        It is to be read again, from `fetched` on.
        """
        before, before_bytes = len(self._records), self.in_hand_bytes
        while len(self._records) > self._under_way and (len(self._records) > most or self.in_hand_bytes > most_bytes):
            dropped = self._records.pop()
            self.in_hand_bytes -= len(dropped)
            self.fetched = dropped.offset
        if len(self._records) < before:
            self._owner.settled(before - len(self._records), before_bytes - self.in_hand_bytes)

    def skip_to(self, offset: int) -> None:
        """What stands before that cannot be read any more."""
        self.fetch_from = offset

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            known = await self._appends.connected()
            try:
                if not self.begun.is_set():
                    await self._begin(known)
                elif not self._told <= known <= self.fetched:  # another process, or a store that has lost something
                    self._read_again(known)
                self._settle_to(known)
                await self._send_all()
            except ConnectionLost as error:
                self.why_waiting = str(error)

    async def _begin(self, known: int) -> None:
        start = known or await self._owner.start_of(self.partition)
        if start > known:
            await self._appends.append(start, b"")
        self.position = self._told = self.fetch_from = start
        self.begun.set()

    def _read_again(self, offset: int) -> None:
        self._drop(len(self._records))
        self.position = self._told = self.fetch_from = offset

    def _settle_to(self, offset: int) -> None:
        """The store has everything before an offset."""
        count = 0
        for record in self._records:
            if record.offset >= offset:
                break
            count += 1
        self._drop(count)
        self.position = max(self.position, offset)
        self._told = max(self._told, offset)

    def _drop(self, count: int) -> None:
        size_bytes = sum(len(self._records.popleft()) for _ in range(count))
        self._under_way = max(0, self._under_way - count)
        if count:
            self.in_hand_bytes -= size_bytes
            self._owner.settled(count, size_bytes)

    # --- sending

    async def _send_all(self) -> None:
        """Raises ConnectionLost."""
        is_sure = False
        ahead: FeedPack | None = None
        while True:
            is_single = not is_sure or self.position < self._careful_until
            if ahead is None:
                await self._some(is_sure)
                ahead = self._pack(0, 1 if is_single else MOST_RECORDS)
            pack, ahead = ahead, None
            self._under_way = pack.taken
            if self._is_to_be_told(pack):
                answer = self._appends.append(pack.end, pack.records)
                if not is_single and len(self._records) > pack.taken:
                    ahead = self._pack(pack.taken, MOST_RECORDS)
                    self._under_way += ahead.taken
                try:
                    is_new = await answer
                except StoreRefused as error:
                    ahead = None
                    if not await self._refused(pack, error):
                        continue
                    is_new = False
                else:
                    self._counts.sent += pack.stored
                    self._counts.dead += pack.letters
                    self._told, self._told_s, self.why_waiting = pack.end, self._now_s, ""
                is_sure = is_sure or is_new
            self._counts.taken += pack.taken
            self._counts.passed += pack.stored + pack.letters
            self.position = max(self.position, pack.end)
            self._drop(pack.taken)

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _is_to_be_told(self, pack: FeedPack) -> bool:
        return bool(pack.records) or (pack.end > self._told and self._now_s - self._told_s > PROGRESS_S)

    async def _some(self, is_sure: bool) -> None:
        """Wait for records. What was left out is told to the store meanwhile. Raises ConnectionLost."""
        while not self._records:
            self._came.clear()
            try:
                async with asyncio.timeout(PROGRESS_S):
                    await self._came.wait()
            except TimeoutError:
                _ = self._appends.welcome
                if self.position > self._told and is_sure:
                    await self._appends.append(self.position, b"")
                    self._told, self._told_s = self.position, self._now_s

    async def _refused(self, pack: FeedPack, error: StoreRefused) -> bool:
        """Whether its record, which is the only one, is given up. Raises ConnectionLost."""
        if error.code not in OF_THE_MESSAGE:
            if str(error) != self.why_waiting:
                log.warning("flow %s: partition %d: %s; it is tried again", self._flow.name, self.partition, error)
            self.why_waiting = str(error)
            self._counts.note(f"partition {self.partition}: {error}")
            await asyncio.sleep(PAUSE_S)
            return False
        if pack.taken > 1:  # which of them is it?
            self._careful_until = pack.end
            return False
        return await self._bury(self._records[0], str(error))

    async def _bury(self, record: KafkaRecord, reason: str) -> bool:
        letter = self._letter(record, reason)
        while letter is not None:
            try:
                await self._appends.append(record.offset + 1, letter.record)
            except StoreRefused as error:
                if error.code in OF_THE_MESSAGE:
                    break
                await asyncio.sleep(PAUSE_S)  # also until the store knows that the first refusal was heard
            else:
                self._counts.dead += 1
                self._told = record.offset + 1
                return True
        if letter is not None:
            self._leave_out(record, reason)
        return True

    def _leave_out(self, record: KafkaRecord, reason: str) -> None:
        self._counts.failed += 1
        where = f"partition {record.partition}, offset {record.offset}"
        log.error("flow %s: %s is left out, and no dead letter can be stored: %s", self._flow.name, where, reason)

    # --- making

    def _pack(self, skipped: int, most: int) -> FeedPack:
        """Of the records in hand after the first `skipped`, of which there are some."""
        welcome = self._appends.welcome
        left_bytes: float = min(PACK_BYTES, batch_bytes(welcome))
        left_changes = pack_changes(welcome)
        parts: list[bytes] = []
        count = stored = letters = 0
        end = self.position
        topic = None
        for record in islice(self._records, skipped, skipped + most):
            made, is_letter = self._made(record)
            if made is not None:
                changes = changes_of(made) if made.topic != topic else 0
                left_bytes -= len(made.record)
                left_changes -= changes
                if parts and (left_bytes < 0 or left_changes < 0):
                    break
                parts.append(made.record)
                topic = made.topic
                letters += is_letter
                stored += not is_letter
            count += 1
            end = record.offset + 1
        return FeedPack(count, end, b"".join(parts), stored, letters)

    def _made(self, record: KafkaRecord) -> tuple[Outgoing | None, bool]:
        """What becomes of a record, and whether that is a dead letter."""
        try:
            message = message_of(self._flow, record)
            return (self._outgoing(message), False) if message is not None else (None, False)
        except (Unfit, BadMessage, StoreRefused) as error:
            return self._letter(record, str(error)), True

    def _letter(self, record: KafkaRecord, reason: str) -> Outgoing | None:
        """A dead letter; without what would make it too large. None: not even that can be."""
        for with_payload in (True, False):
            try:
                return self._outgoing(letter_of(self._flow, record, reason[:MOST_WHY_CHARACTERS], with_payload))
            except (BadMessage, StoreRefused):
                continue
        self._leave_out(record, reason)
        return None

    def _outgoing(self, message: ToStore) -> Outgoing:
        topic, payload, options = message
        return self._make(topic, payload, cast(PublishLater, {**options}))
