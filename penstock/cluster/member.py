"""A store's part in its cluster: what Kafka answers goes to the Replica, and what the Replica wants is done.

All is in the store's thread, but for Kafka's threads, which only schedule what they have to tell.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from lightqueue.message_store import MessageStore
from lightqueue.opening import OpenStore
from lightqueue.standby import Standby
from notify.links.address import StoreAddress, StoreAddressError
from penstock.cluster.answers import (
    FetcherFailed,
    FetchPlace,
    FetchUnanswered,
    FrameRefused,
    FrameStands,
    FrameUnanswered,
    KafkaAnswer,
    PartitionForeign,
    PartitionLeft,
    RecordsFetched,
)
from penstock.cluster.copying import CopyTask, CopyThread
from penstock.cluster.errors import PartitionLost
from penstock.cluster.fetching import FrameFetcher
from penstock.cluster.producing import FrameProducer
from penstock.cluster.progress import LookedAt, ProgressThread, StoreReport
from penstock.cluster.topic import ReplicatedTopic, TopicAdmin
from penstock.config.settings import Settings
from penstock.kafka_place import KafkaPlace
from penstock.servers.logs import announce
from penstock.servers.process import Stop, start_again
from store.errors import DamagedInCluster, HistoryElsewhere, NotLeading, ReplicationBehind, StoreError
from store.files.folder import DataFolder
from store.log.copied import discard_copying
from store.log.mark_file import read_mark
from store.log.replicated import replicated_in
from store.mending.taking import OwnLog
from store.ratelimit import RateLimitedLog
from store.replication.actions import (
    AcceptedTo,
    BeginLeading,
    DiscardState,
    FollowLeader,
    MayEnd,
    ReplicaAction,
    SendFrame,
    WriteAccepted,
)
from store.replication.clocks import ReplicaTimes
from store.replication.frames import Leader
from store.replication.judging import NOTHING_ACCEPTED, ReplicaMark
from store.replication.replica import Replica, ReplicaRole
from store.replication.sending import SendLimits
from store.wire.client.address import StorePort

log = logging.getLogger("penstock.cluster")

TICK_S: Final = 0.02
AGAIN_S: Final = 0.1  # after a fetch that failed at once
LEAVE_S: Final = 3.0  # for saying that it stops
KEEP_S: Final = 5.0


class ClusterMember:
    """ClusterPart (penstock.servers.store_process) of this process, and TakesAppends of its log."""

    def __init__(self, settings: Settings, place: KafkaPlace, topic: ReplicatedTopic) -> None:
        cluster = settings.cluster
        self._all_settings, self._settings = settings, settings.store
        self._place = place
        self._topic = topic
        self._me = Leader(cluster.address or settings.wire.listen, os.urandom(16))
        self._name, self._stores = cluster.name or socket.gethostname(), cluster.stores
        self._times = ReplicaTimes(cluster.failover_s)
        self._loop: asyncio.AbstractEventLoop
        self._events = RateLimitedLog(log)
        self._standby: Standby
        self._replica: Replica
        self._producer: FrameProducer
        self._fetcher: FrameFetcher
        self._progress: ProgressThread
        self._copying: CopyThread | None = None
        self._ticking: asyncio.Future[None]
        self._fault: Exception | None = None
        self._leads = asyncio.Event()
        self._lacks_bytes = False  # that only another store has
        self._has_fetched = False
        self._may_end = asyncio.Event()
        self._is_closed = False
        self._checked_s = 0.0
        self._turn_appends = 0  # of this turn of the loop
        self._appends_one = True  # the last turn that appended did so once
        self.leader_place = ""  # HOST:PORT of the store that leads; empty: not known

    # --- following, and taking over

    async def until_leading(self, stop: Stop, on_replayed: Callable[[int, int], None]) -> OpenStore | None:
        self._loop = asyncio.get_running_loop()
        try:
            opened = OpenStore(
                self._settings, on_replayed=on_replayed, opens=replicated_in(self._topic.id), follows=True
            )
        except DamagedInCluster as error:
            await self._copy_in_place_of_damaged(stop, error.reason)
            return None
        self._standby = standby = Standby(opened, self._settings)
        mark = standby.log.keeper.kept
        self.leader_place = place_of(mark.leader)
        limits = SendLimits(record_bytes=self._topic.record_bytes)
        self._replica = replica = Replica(self._me, time.monotonic(), mark, self._times, limits)
        self._producer = FrameProducer(self._place, self._times.patience_s, self._told)
        self._fetcher = FrameFetcher(self._place, self._topic.id, self._told)
        self._progress = ProgressThread(self._place, self._name, self._stores, self._report)
        announce("follows", self._me.address, topic=self._place.topic, offset=mark.offset)
        log.info("follows %s behind offset %d, log_offset %d", self._place.topic, mark.offset, mark.accepted)
        self._ticking = asyncio.ensure_future(self._keep_ticking())
        self._ticking.add_done_callback(self._ticked_last)
        while not (self._leads.is_set() and replica.serves(time.monotonic())):
            if await stop.or_tick():
                await self._end_as_standby(replica)
                return None
            self.tick()
            if self._lacks_bytes:
                self._close_frames()
                await self._copy(stop, standby.log.accepted, OwnLog(standby.opened.folder.log, standby.log.accepted))
                standby.close()
                return None
            standby.tick(time.monotonic())
        standby.log.taker = self
        if header := standby.log.not_accepted():
            self.check()
            self.take(header)
        return standby.lead(replica.epoch)

    async def _copy_in_place_of_damaged(self, stop: Stop, reason: str) -> None:
        """The other stores have no gap where this one has damaged bytes, so all comes from the one that leads."""
        data = self._settings.data
        log.error("%s: %s; the log of the store that leads is copied", data, reason)
        folder = DataFolder(data, self._settings.group_access)
        try:
            known = read_mark(data)
            mark = known.mark if known is not None else NOTHING_ACCEPTED
            self._progress = ProgressThread(
                self._place, self._name, self._stores, lambda: LookedAt(mark, self._said(mark, False), None)
            )
            await self._copy(stop, mark.accepted, None)
        finally:
            folder.close()

    async def _copy(self, stop: Stop, least: int, own: OwnLog | None) -> None:
        """Copy the log of the store that leads, and start again with it; return if this store is to stop.

        `least`: log_offset up to which this store has accepted the log. `own`: what of it need not come.
        """
        announce("copies", self._me.address, topic=self._place.topic)
        where = CopyTask(self._place, self._topic.id, self._name, least, own)
        copying = self._copying = CopyThread(self._all_settings, where)
        self._progress.tell_now()
        is_stopped = False
        while not (copying.is_over or is_stopped):
            is_stopped = await stop.or_tick()
        copying.stop()
        if copying.error is not None:
            raise copying.error
        if not is_stopped:
            start_again()
        self._progress.close()

    async def _end_as_standby(self, replica: Replica) -> None:
        self._do(replica.stop(time.monotonic()))
        await self._until_may_end()
        self._close_kafka()
        self._standby.close()

    def _report(self) -> LookedAt:
        """For the thread that tells Kafka."""
        replicated = self._standby.log
        mark = replicated.keeper.kept
        is_leading = self._replica.role is ReplicaRole.LEADER
        return LookedAt(mark, self._said(mark, is_leading), replicated.given_offset)

    def _said(self, mark: ReplicaMark, is_leading: bool) -> StoreReport:
        report = StoreReport(self._me.address, is_leading, mark.epoch, mark.accepted, time.time())
        if self._copying is None:
            return report
        leader, done_bytes, of_bytes = self._copying.progress
        copied = {"copies_from": leader, "copied_bytes": done_bytes, "copies_bytes": of_bytes}
        return msgspec.structs.replace(report, is_copying=True, **copied)

    async def _keep_ticking(self) -> None:
        while not self._is_closed:
            self._act(self._replica.tick)
            await asyncio.sleep(TICK_S)

    def _ticked_last(self, ticking: asyncio.Future[None]) -> None:
        """A store that does not tick any more must not go on."""
        if not ticking.cancelled() and isinstance(error := ticking.exception(), Exception):
            self._fails(error)

    # --- what Kafka's threads tell

    def _told(self, answer: KafkaAnswer) -> None:
        """Called by Kafka's threads."""
        self._loop.call_soon_threadsafe(self._arrived, answer)

    def _arrived(self, answer: KafkaAnswer) -> None:
        replica = self._replica
        match answer:
            case FrameStands(frame, offset):
                self._act(lambda now_s: replica.produced(now_s, frame, offset))
            case FrameUnanswered(frame, reason):
                self._events.warning("produce", "Kafka has not answered a frame: %s", reason)
                self._act(lambda now_s: replica.unanswered(now_s, frame))
            case FrameRefused(_, reason):
                log.warning("Kafka takes no frame of that size any more (%s); a new epoch begins", reason)
                asking = self._loop.run_in_executor(None, TopicAdmin(self._place).describe)
                asking.add_done_callback(self._described_again)
            case RecordsFetched(records, is_end):
                self._fetched_first()
                self._act(lambda now_s: replica.fetched(now_s, records, is_end))
            case FetchUnanswered(reason):
                self._events.warning("fetch", "Kafka does not answer: %s", reason)
                self._loop.call_later(AGAIN_S, self._fetch)
            case FetcherFailed(error):
                self._fails(error)
            case PartitionLeft(position, first):
                self._lacks(f"it begins at offset {first}, and this store has read it up to {position}")
            case PartitionForeign(reason):
                self._fails(PartitionLost(self._place.topic, reason))

    def _fetched_first(self) -> None:
        if not self._has_fetched:
            self._has_fetched = True
            discard_copying(self._settings.data)  # of a process that ended while it copied

    def _lacks(self, reason: str) -> None:
        """Only another store has what comes next. One that led begins again, as one that follows."""
        if self._replica.mark.offset < 0 and self._replica.accepted:  # its log is not of this topic
            self._fails(PartitionLost(self._place.topic, reason))
            return
        log.warning("topic %s of Kafka: %s; the log of the store that leads is copied", self._place.topic, reason)
        if self._replica.role is ReplicaRole.LEADER:
            start_again()
        self._lacks_bytes = True

    def _described_again(self, asked: asyncio.Future[ReplicatedTopic | None]) -> None:
        """The topic takes smaller records now, so its frames cannot be sent again as they are."""
        found = None if asked.exception() is not None else asked.result()
        if found is not None:
            self._replica.limits = SendLimits(record_bytes=found.record_bytes)
        self._act(self._replica.take_new_epoch)

    def _act(self, ask: Callable[[float], list[ReplicaAction]]) -> None:
        """Ask the Replica, and do what it wants. What goes wrong with that ends the store."""
        if self._is_closed or self._lacks_bytes or self._fault is not None:
            return
        try:
            self._do(ask(time.monotonic()))
        except HistoryElsewhere as error:
            self._lacks(str(error))
            return
        except (StoreError, ValueError) as error:
            self._fails(error)
            return
        self._standby.log.keep(self._replica.mark)
        self._fetch()

    def _fails(self, error: Exception) -> None:
        self._fault = self._fault or error

    def _fetch(self) -> None:
        replica = self._replica
        if replica.reads and not self._fetcher.is_asked and not self._is_closed:
            self._fetcher.fetch(FetchPlace(replica.position, replica.mark))

    # --- what the Replica wants

    def _do(self, actions: list[ReplicaAction]) -> None:
        for action in actions:
            match action:
                case SendFrame(frame, value):
                    self._producer.send(frame, value)
                case WriteAccepted(base, data):
                    self._standby.write(base, data)
                case AcceptedTo(_, log_offset):
                    self._standby.log.accepts(log_offset)
                case BeginLeading(epoch, log_offset):
                    log.info("leads in epoch %d from log_offset %d on", epoch, log_offset)
                    self._standby.opened.epoch = epoch
                    self.leader_place = ""
                    self._leads.set()
                    self._progress.tell_now()
                case FollowLeader(epoch, leader):
                    self.leader_place = place_of(leader)
                    log.info("follows the leader at %s in epoch %d", leader.address, epoch)
                case DiscardState(log_offset):
                    log.warning("another store leads; all behind log_offset %d is given up", log_offset)
                    start_again()
                case MayEnd():
                    self._may_end.set()

    # --- as the leader

    def check(self) -> None:
        self._checked_s = now_s = time.monotonic()
        replica = self._replica
        if not replica.serves(now_s):
            raise NotLeading(replica.leader.address if replica.leader is not None else "")
        waiting_bytes = replica.end - replica.accepted
        if waiting_bytes > replica.limits.waiting_bytes:
            raise ReplicationBehind(waiting_bytes)

    def take(self, data: bytes) -> None:
        """Send it at once. Where turns of the loop append more than once, each goes as one frame at its end: a second
        frame would wait for the first one.
        """
        if not self._turn_appends:
            self._loop.call_soon(self._turn_ends)
        self._turn_appends += 1
        if self._appends_one:
            self._do(self._replica.append(self._checked_s, data))
        else:
            self._replica.gather(self._checked_s, data)

    def _turn_ends(self) -> None:
        self._appends_one = self._turn_appends == 1
        self._turn_appends = 0
        self._act(self._replica.tick)

    def why_not_serving(self) -> str:
        if self._fault is None and self._replica.serves(time.monotonic()):
            return ""
        return "this store does not lead its cluster now"

    def tick(self) -> None:
        if self._fault is not None:
            raise self._fault
        self._events.tell_left_out()

    async def leave(self, messages: MessageStore) -> None:
        """Say that this store stops. What it cannot have accepted goes with the process, without a change on disk."""
        replica, replicated = self._replica, self._standby.log
        messages.groups.write_due(time.time_ns() // 1_000_000, at_once=True)
        self._act(replica.stop)
        is_said = await self._until_may_end()
        self._close_kafka()
        keeper = replicated.keeper
        is_kept = await self._loop.run_in_executor(None, partial(keeper.wait_kept, KEEP_S))
        if not (is_said and is_kept and replicated.kept == replicated.end):
            log.warning("the cluster has not accepted all; another store goes on with what it has")
            os._exit(0)

    async def _until_may_end(self) -> bool:
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._may_end.wait()
        except TimeoutError:
            return False
        return True

    def _close_kafka(self) -> None:
        self._close_frames()
        self._progress.close()

    def _close_frames(self) -> None:
        """All but the thread that tells Kafka how far this store is."""
        self._is_closed = True
        self._fetcher.close()
        self._producer.close(0)


def place_of(leader: Leader | None) -> str:
    """HOST:PORT at which users reach a leader; empty: nobody can tell by its address."""
    try:
        address = StoreAddress.parse(leader.address) if leader is not None else None
    except StoreAddressError:
        return ""
    if address is None or address.host in ("", "0.0.0.0", "::"):
        return ""
    return str(StorePort(address.host, address.port))
