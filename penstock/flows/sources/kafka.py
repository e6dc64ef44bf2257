"""Kafka in: the records of a topic become messages of a store, each once and in the order of its partition.

No consumer group of Kafka's decides where a partition goes on, the store does (partition.py). A topic is known by the
ids of its cluster and its own, so a topic that was made anew begins anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from penstock.flows.counts import TOLD_EVERY_S
from penstock.flows.definition import Flow
from penstock.flows.errors import SinkAway
from penstock.flows.sources.numbered import NumberedAppends
from penstock.flows.sources.partition import PartitionFeed
from penstock.flows.sources.records import KafkaRecord
from penstock.flows.sources.runner import SourceRunner, until_one_ends
from penstock.flows.sources.topic import (
    WAIT_S,
    KafkaReader,
    KafkaTopic,
    PartitionStart,
    ReaderThread,
    record_of,
    said_by_kafka,
    told,
    topic_place,
)
from penstock.sdk.client import Client
from penstock.sdk.errors import ConnectionLost
from store.wire.base import PRODUCER

log = logging.getLogger("penstock.flows")

MOST_IN_HAND: Final = 20_000  # records
MOST_IN_HAND_BYTES: Final = 32 << 20
LOOK_S: Final = 5.0  # between two looks at the topic's partitions


class KafkaRunner(SourceRunner):
    """Owner of a flow's reader."""

    def __init__(self, flow: Flow, client: Client, chance: Callable[[], float] = random.random) -> None:
        """`client`: of the flow's own store. Raises FlowError."""
        super().__init__(flow, client, "Kafka sends records again", chance)
        self._place = topic_place(flow)
        self._start = PartitionStart(flow)
        self._reader = ReaderThread(self._place)
        self.positions: dict[int, int] = {}
        """By partition: up to which offset the store has the records."""

    async def _bring(self) -> None:
        reader = self._reader
        while not self.gate.is_stopping:
            await self._resumed(reader)
            topic = await self._described(reader)
            work = TopicAtWork(self, self._client, reader, topic, self._start)
            await until_one_ends(work.run(), self.group.paused.wait())  # what the store has not answered comes again

    async def _close(self) -> None:
        await self._reader.close()

    async def _resumed(self, reader: ReaderThread) -> None:
        """Wait while the flow is paused; its lag grows."""
        if not self.group.going.is_set():
            await until_one_ends(self._look(reader), self.group.going.wait())

    async def _look(self, reader: ReaderThread) -> None:
        """Count the lag now and then. Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.positions:
                await self._learn(reader)
            try:
                ends = await reader.do(lambda reader: {each: reader.bounds(each)[1] for each in self.positions})
            except KafkaException as error:
                self.gate.troubled(f"Kafka, topic {self._place.topic}: {said_by_kafka(error)}")
            else:
                self.behind(ends)

    async def _learn(self, reader: ReaderThread) -> None:
        """Ask the store how far an earlier process came."""
        topic = await self._described(reader)
        for partition in topic.partitions:
            appends = NumberedAppends(self._client.another_link(peer_name(self.flow, topic, partition)))
            try:
                if known := await appends.connected():
                    self.positions[partition] = known
            finally:
                await appends.close()

    def behind(self, ends: Mapping[int, int]) -> None:
        """Partitions of its topic end there."""
        self.counts.lag = sum(max(0, end - self.positions.get(partition, end)) for partition, end in ends.items())

    async def _described(self, reader: ReaderThread) -> KafkaTopic:
        """The topic, once Kafka says something of it."""
        while True:
            outages = await self.gate.passed()
            try:
                found = await reader.do(KafkaReader.describe)
            except (KafkaException, TimeoutError) as error:
                await self.gate.shut(SinkAway(f"Kafka, topic {self._place.topic}: {said_by_kafka(error)}"))
            else:
                self.gate.answered(outages)
                return found


class TopicAtWork:
    """Owner of the feeds of one topic's partitions, and of how much of it is in hand."""

    def __init__(
        self, runner: KafkaRunner, client: Client, reader: ReaderThread, topic: KafkaTopic, start: PartitionStart
    ) -> None:
        self._runner = runner
        self._flow, self._counts, self._gate = runner.flow, runner.counts, runner.gate
        self._client, self._reader, self._topic, self._start = client, reader, topic, start
        self._whole = NumberedAppends(client.another_link(peer_name(self._flow, topic)))
        """A peer for the topic: it has appended once all partitions that were there at first have begun."""
        self._is_begun = False
        self._feeds: dict[int, PartitionFeed] = {}
        self._appends: list[NumberedAppends] = [self._whole]
        self._tasks: list[asyncio.Task[None]] = []
        self._looked_s = self._counted_s = time.monotonic()
        self._in_hand = self._in_hand_bytes = 0
        self._room = asyncio.Event()
        self._held_up: set[int] = set()  # partitions of which nothing more is read for now

    async def run(self) -> None:
        """Until cancelled, or until the topic was made anew."""
        try:
            self._is_begun = await self._whole.connected() > 0
            self._grow(self._topic.partitions)
            while await self._is_the_same():
                if not self._is_begun and all(feed.begun.is_set() for feed in self._feeds.values()):
                    await self._begin()
                await self._assign()
                await self._read()
                await self._count_lag()
                for task in self._tasks:
                    if task.done():
                        task.result()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*(each.close() for each in self._appends))

    async def _begin(self) -> None:
        """Say that the flow has begun: what comes from now on comes from its beginning."""
        try:
            await self._whole.append(1, b"")
            self._is_begun = True
        except ConnectionLost:
            await self._whole.connected()

    def _grow(self, partitions: Iterable[int]) -> None:
        """Take partitions on."""
        for partition in sorted(partitions):
            appends = NumberedAppends(self._client.another_link(peer_name(self._flow, self._topic, partition)))
            feed = PartitionFeed(self._flow, partition, self._client.message, appends, self._counts, self)
            self._feeds[partition] = feed
            self._appends.append(appends)
            self._tasks.append(asyncio.create_task(feed.run()))

    async def start_of(self, partition: int) -> int:
        """Where a partition begins that the store does not know."""
        while True:
            try:
                return await self._reader.do(lambda reader: self._start.of(reader, partition, self._is_begun))
            except KafkaException as error:
                self._trouble(said_by_kafka(error))
                await asyncio.sleep(WAIT_S)

    def settled(self, count: int, size_bytes: int) -> None:
        self._in_hand -= count
        self._in_hand_bytes -= size_bytes
        self._room.set()

    async def _is_the_same(self) -> bool:
        """Look at the topic now and then: it may have more partitions, or be another one."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return True
        self._looked_s = now_s
        try:
            found = await self._reader.do(KafkaReader.describe)
        except (KafkaException, TimeoutError) as error:
            self._trouble(said_by_kafka(error))
            return True
        if found[:2] != self._topic[:2]:
            log.warning("flow %s: topic %s was made anew; so the flow begins anew", self._flow.name, self._topic.name)
            return False
        if new := found.partitions - self._feeds.keys():
            log.info("flow %s: topic %s has %d more partitions", self._flow.name, self._topic.name, len(new))
            self._grow(new)
        return True

    async def _assign(self) -> None:
        """Have the consumer go on where the feeds want."""
        begun = {number: feed for number, feed in self._feeds.items() if feed.begun.is_set()}
        if not (self._hold_up() or any(feed.fetch_from is not None for feed in begun.values())):
            return
        places = {}
        for number, feed in begun.items():
            if feed.fetch_from is not None:
                feed.fetched, feed.fetch_from = feed.fetch_from, None
            if number not in self._held_up:
                places[number] = feed.fetched
        await self._reader.do(lambda reader: reader.assign(places))

    def _hold_up(self) -> bool:
        """Have no partition that the store takes nothing of fill the room of the others. Whether anything changes."""
        share, share_bytes = (most // (2 * len(self._feeds)) for most in (MOST_IN_HAND, MOST_IN_HAND_BYTES))
        before = len(self._held_up)
        for number in list(self._held_up):
            feed = self._feeds[number]
            if feed.in_hand <= share // 2 and feed.in_hand_bytes <= share_bytes // 2:
                self._held_up.remove(number)
        is_less = len(self._held_up) < before
        full = {
            number
            for number, feed in self._feeds.items()
            if feed.why_waiting
            and number not in self._held_up
            and (feed.in_hand > share or feed.in_hand_bytes > share_bytes)
        }
        for number in full:
            self._feeds[number].cut(share, share_bytes)
        self._held_up |= full
        return is_less or bool(full)

    async def _read(self) -> None:
        if self._in_hand >= MOST_IN_HAND or self._in_hand_bytes >= MOST_IN_HAND_BYTES:
            self._room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await self._room.wait()
            return
        came: dict[int, list[KafkaRecord]] = {}
        messages, errors = await self._reader.do(KafkaReader.read)
        for message in messages:
            error = message.error()
            if error is None:
                record = record_of(message)
                came.setdefault(record.partition, []).append(record)
                self._in_hand_bytes += len(record)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                await self._out_of_range(message.partition() or 0)
            elif error.code() != KafkaError._PARTITION_EOF:
                errors.append(error)
        for error in errors:
            self._trouble(told(error))
        if came and self._gate.away:
            self._gate.answered(await self._gate.passed())
        for partition, records in came.items():
            self._in_hand += len(records)
            self._feeds[partition].add(records)

    def _trouble(self, reason: str) -> None:
        """The library goes on trying by itself."""
        self._gate.troubled(f"Kafka, topic {self._topic.name}: {reason}")

    async def _count_lag(self) -> None:
        now_s = time.monotonic()
        if now_s - self._counted_s < TOLD_EVERY_S:
            return
        self._counted_s = now_s
        positions = {number: feed.position for number, feed in self._feeds.items() if feed.begun.is_set()}
        self._runner.positions = positions
        self._runner.behind(await self._reader.do(lambda reader: reader.known_ends(positions)))

    async def _out_of_range(self, partition: int) -> None:
        """What comes next is gone, or not there yet."""
        feed = self._feeds[partition]
        try:
            low, high = await self._reader.do(lambda reader: reader.bounds(partition))
        except KafkaException as error:
            self._trouble(said_by_kafka(error))
            feed.skip_to(feed.fetched)
            return
        where = f"topic {self._topic.name}, partition {partition}"
        if feed.fetched < low:
            lost = low - feed.fetched
            self._counts.lost += lost
            text = "flow %s: %s: %d records were deleted before they were read, from offset %d on; it goes on at %d"
            log.warning(text, self._flow.name, where, lost, feed.fetched, low)
            feed.skip_to(low)
        elif feed.fetched > high:
            text = "flow %s: %s ends at %d, and was read up to %d: Kafka has lost records; it goes on at the end"
            log.error(text, self._flow.name, where, high, feed.fetched)
            feed.skip_to(high)
        else:
            feed.skip_to(feed.fetched)


def peer_name(flow: Flow, topic: KafkaTopic, partition: int | None = None) -> str:
    """The name by which the store knows a topic of a flow, or one partition of the topic."""
    name = f"{PRODUCER}kafka:{flow.name}:{topic.cluster_id}:{topic.topic_id}"
    return name if partition is None else f"{name}:{partition}"
