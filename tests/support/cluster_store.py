"""A simulated store of a cluster: its log, state, index and disk, kept by the rules of store.replication."""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from store.errors import NotLeading, ReplicationBehind
from store.replication.actions import (
    AcceptedTo,
    BeginLeading,
    DiscardState,
    MayEnd,
    ReplicaAction,
    SendFrame,
    WriteAccepted,
)
from store.replication.frames import FRAME_HEADER_BYTES, Leader, LogFrame
from store.replication.judging import NOTHING_ACCEPTED, ReplicaMark
from store.replication.replica import Replica, ReplicaRole
from store.replication.sending import SendLimits
from tests.support.cluster_checks import ClusterChecks
from tests.support.cluster_network import FETCH_S, SimulatedKafka, SimulatedTime

LIMITS = SendLimits(gather_bytes=300, record_bytes=160 + FRAME_HEADER_BYTES, waiting_bytes=3_000)
_HEAD = struct.Struct("<II")
TICK_S = 0.1
BUSY = 0.6
SYNC_S = 0.4


def append_bytes(number: int, length: int) -> bytes:
    """An append that says how long it is, and which."""
    return _HEAD.pack(_HEAD.size + length, number) + bytes([number % 251]) * length


def is_whole(data: bytes) -> bool:
    """Whether bytes of the log are whole appends."""
    at = 0
    while at + _HEAD.size <= len(data):
        at += int(_HEAD.unpack_from(data, at)[0])
    return at == len(data)


@dataclass
class Disk:
    """What a crash leaves."""

    log: bytes = b""
    mark: ReplicaMark = NOTHING_ACCEPTED
    index: bytes = b""  # the log as far as the index has applied it


class Pending(NamedTuple):
    """An append that a client waits for."""

    base: int
    data: bytes


@dataclass
class Clock:
    """A machine's monotonic clock."""

    time: SimulatedTime
    rate: float
    offset_s: float

    def now_s(self) -> float:
        return self.offset_s + self.rate * self.time.now_s


@dataclass
class Surroundings:
    """What the stores of one simulation share."""

    time: SimulatedTime
    kafka: SimulatedKafka
    chance: random.Random
    checks: ClusterChecks
    appended: int = 0
    publishing: float = BUSY  # how likely the leader publishes in a turn


@dataclass
class SimulatedStore:
    """One store. `crash`, `pause` and `wake` are what happens to its process."""

    name: str
    around: Surroundings
    clock: Clock
    replica_class: type[Replica] = Replica
    disk: Disk = field(default_factory=Disk)
    is_up: bool = False
    is_paused: bool = False
    run: int = 0  # of its process: what an earlier one asked for is not for this one

    # --- the process

    def start(self) -> None:
        self.run += 1
        self.is_up, self.is_paused = True, False
        self.open_log()
        process = self.around.chance.randbytes(16)
        self.replica = self.made_replica(Leader(self.name, process))
        self.inbox: deque[Callable[[float], list[ReplicaAction]]] = deque()
        self.pending: deque[Pending] = deque()
        self.delivered = 0
        self.batch: int | None = None  # the index batch in hand goes up to here
        self.fetching_since: float | None = None
        self.next_sync_s = 0.0
        self.around.checks.index_is_of_log(self.name, self.disk.index, bytes(self.log))
        self._tick(self.run)

    def open_log(self) -> None:
        """The log without what was not accepted."""
        self.log = bytearray(self.disk.log[: self.disk.mark.accepted])
        self.known_to = len(self.log)

    def made_replica(self, me: Leader) -> Replica:
        return self.replica_class(me, self.clock.now_s(), self.disk.mark, limits=LIMITS)

    def crash(self) -> None:
        self.is_up = False

    def end(self) -> None:
        """As it was told to; another process of it starts a little later."""
        self.crash()
        self.around.time.after(0.5, lambda: None if self.is_up else self.start())

    def pause(self) -> None:
        self.is_paused = True

    def wake(self) -> None:
        if self.is_up and self.is_paused:
            self.is_paused = False
            self.turn()

    def lose_disk(self, copied: Disk) -> None:
        """A new disk: empty, or with a copy of another store's log and mark."""
        self.disk = Disk(copied.log[: copied.mark.accepted], copied.mark)

    # --- its turns

    def _tick(self, run: int) -> None:
        if self.is_up and self.run == run:
            if not self.is_paused:
                self.turn(is_tick=True)
            self.around.time.after(TICK_S, lambda: self._tick(run))

    def turn(self, is_tick: bool = False) -> None:
        now_s = self.clock.now_s()
        if self.serves(now_s):
            self.around.checks.serves(self.name, self.replica.epoch)
            self.deliver()
            if is_tick and self.around.chance.random() < self.around.publishing:
                self.publish(now_s)
        while self.inbox and self.is_up:
            self.do(self.inbox.popleft()(now_s))
        if self.is_up:
            self.do(self.replica.tick(now_s))
        if self.is_up:
            self.keep(now_s)
            self.fetch()

    def serves(self, now_s: float) -> bool:
        return self.replica.serves(now_s)

    def publish(self, now_s: float) -> None:
        for _ in range(self.around.chance.randint(1, 3)):
            self.around.appended += 1
            data = append_bytes(self.around.appended, self.around.chance.choice((4, 20, 90, 500)))
            base = self.replica.end
            try:
                actions = self.replica.append(now_s, data)
            except (NotLeading, ReplicationBehind):
                return
            self.around.checks.expect(base == len(self.log), f"{self.name} appends at {base}, not {len(self.log)}")
            self.log += data
            self.pending.append(Pending(base, data))
            self.do(actions)

    def deliver(self) -> None:
        """Users are sent what is accepted."""
        self._deliver_to(self.replica.accepted)

    def _deliver_to(self, end: int) -> None:
        if end > self.delivered:
            self.around.checks.delivered(self.delivered, bytes(self.log[self.delivered : end]))
            self.delivered = end

    def keep(self, now_s: float) -> None:
        """Sync the log, then keep the mark, then write the index up to where its batch was cut."""
        if now_s < self.next_sync_s:
            return
        self.next_sync_s = now_s + SYNC_S
        self.disk.log, self.disk.mark = bytes(self.log), self.replica.mark
        if self.batch is None:
            self.batch = len(self.log)
        elif self.may_write_index(self.batch):
            self.disk.index = bytes(self.log[: self.batch])
            self.batch = None

    def may_write_index(self, cut: int) -> bool:
        return self.replica.accepted >= cut

    def fetch(self) -> None:
        """Ask for records, one request at a time."""
        around, now_s = self.around, self.around.time.now_s
        if self.fetching_since is not None and now_s < self.fetching_since + FETCH_S:
            return
        self.fetching_since = None
        if self.replica.reads:
            self.fetching_since = now_s
            run = self.run

            def fetched(records: Sequence[tuple[int, bytes]], is_end: bool) -> None:
                if self.run == run and self.fetching_since == now_s:
                    self.fetching_since = None
                    self.arrived(run, lambda at_s: self.replica.fetched(at_s, records, is_end), is_urgent=not is_end)

            around.kafka.fetch(self.name, self.replica.position, fetched)

    def arrived(self, run: int, what: Callable[[float], list[ReplicaAction]], is_urgent: bool = True) -> None:
        if self.is_up and self.run == run:
            self.inbox.append(what)
            if is_urgent and not self.is_paused:
                self.turn()

    # --- actions

    def do(self, actions: list[ReplicaAction]) -> None:
        for action in actions:
            match action:
                case SendFrame(frame, value):
                    self.send(frame, value)
                case WriteAccepted(base, data):
                    self.write(base, data)
                case AcceptedTo(epoch, log_offset):
                    self.accepted_to(epoch, log_offset)
                case BeginLeading(epoch, log_offset):
                    self.around.checks.leads(self.name, self.replica.me, epoch, log_offset)
                case DiscardState(log_offset):
                    self.discard(log_offset)
                case MayEnd():
                    self.end()
                case _:
                    pass  # users are told the leader's address

    def send(self, frame: LogFrame, value: bytes) -> None:
        run = self.run

        def answer(offset: int | None) -> None:
            if offset is None:
                self.arrived(run, lambda now_s: self.replica.unanswered(now_s, frame))
            else:
                self.arrived(run, lambda now_s: self.replica.produced(now_s, frame, offset))

        self.around.kafka.produce(self.name, value, answer)

    def write(self, base: int, data: bytes) -> None:
        """As a standby."""
        self.around.checks.expect(base == len(self.log), f"{self.name} writes at {base}, not {len(self.log)}")
        self.log += data
        self._accepts(base + len(data))

    def accepted_to(self, epoch: int, log_offset: int) -> None:
        """As the leader: what is accepted is acknowledged."""
        self._accepts(log_offset)
        self.acknowledge(epoch, log_offset)

    def acknowledge(self, epoch: int, log_offset: int) -> None:
        while self.pending and self.pending[0].base + len(self.pending[0].data) <= log_offset:
            done = self.pending.popleft()
            self.around.checks.acknowledges(self.replica.me, epoch, done.base, done.data)

    def _accepts(self, log_offset: int) -> None:
        data = bytes(self.log[self.known_to : log_offset])
        self.around.checks.expect(is_whole(data), f"{self.name} accepts a part of an append before {log_offset}")
        self.around.checks.accepts(self.name, self.known_to, data)
        self.known_to = log_offset

    def discard(self, log_offset: int) -> None:
        """It led: memory goes, and the log behind what was accepted."""
        del self.log[log_offset:]
        self.pending.clear()
        self.batch = None
        self.delivered = min(self.delivered, log_offset)
        self.around.checks.index_is_of_log(self.name, self.disk.index, bytes(self.log))

    @property
    def is_leading(self) -> bool:
        return self.is_up and self.replica.role is ReplicaRole.LEADER
