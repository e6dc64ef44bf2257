"""The ledger of a chaos run: messages sent, acknowledged and delivered, and which promises they break."""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from store.topics import matches

PATIENCE_S = 30
SHOWN = 5
ROUNDS_KEPT = 3


class SentMessage(NamedTuple):
    """One published message; no two are equal. Sequence numbers rise within a publisher."""

    publisher: str
    topic: str
    qos: int
    sequence: int

    def payload(self, padding: int = 0) -> bytes:
        return f"{self.publisher} {self.topic} {self.qos} {self.sequence} ".encode() + bytes(padding)

    @classmethod
    def parse(cls, payload: bytes) -> "SentMessage":
        publisher, topic, qos, sequence, _ = payload.split(b" ", 4)
        return cls(publisher.decode(), topic.decode(), int(qos), int(sequence))


class Ledger:
    """The clients' observations; clients write it, the checks read it."""

    def __init__(self) -> None:
        self.sent: set[SentMessage] = set()
        self.acked: set[SentMessage] = set()
        self.refused: set[SentMessage] = set()
        self.expiring: set[SentMessage] = set()  # may be dropped once they are old
        self.filters: dict[str, dict[str, int]] = {}  # subscriber → topic filter → QoS
        self.delivered: defaultdict[str, list[SentMessage]] = defaultdict(list)
        self.faults: list[str] = []
        self.events = 0
        self.newest: dict[str, int] = {}  # publisher → last sequence number sent
        self.counts: Counter[str] = Counter()
        self._qos: dict[tuple[str, str, int], int] = {}
        self._marks: dict[str, int] = {}
        self._reached: set[str] = set()
        self._settled: dict[str, int] = {}  # publisher → checked and forgotten up to here
        self._may_come_late: deque[dict[str, set[SentMessage]]] = deque(maxlen=ROUNDS_KEPT)

    def on_sent(self, message: SentMessage) -> None:
        self.sent.add(message)
        self.newest[message.publisher] = message.sequence
        self.counts["sent"] += 1

    def on_connected(self, client_id: str) -> None:
        """Note that a client has a session. Here that is of no interest."""

    def on_flight(self, message: SentMessage, packet_id: int) -> None:
        """Note that a publisher sends a message with a packet identifier. Here that is of no interest."""

    def on_acked(self, message: SentMessage) -> None:
        if message not in self.acked:
            self.acked.add(message)
            self.counts["acknowledged"] += 1
        self.events += 1
        if message.sequence > self._marks.get(message.publisher, -1):
            self._reached.add(message.publisher)

    def on_refused(self, message: SentMessage) -> None:
        """Note that the publisher was told that a message is not stored (although it may be)."""
        self.refused.add(message)
        self.counts["refused"] += 1
        self.events += 1

    def on_delivered(self, subscriber: str, message: SentMessage) -> None:
        self.counts["delivered"] += 1
        self.events += 1
        if message.sequence <= self._settled.get(message.publisher, -1):
            self._on_late(subscriber, message)
            return
        self.delivered[subscriber].append(message)
        if message.sequence > self._marks.get(message.publisher, -1):
            self._reached.update((message.publisher, subscriber))

    def _on_late(self, subscriber: str, message: SentMessage) -> None:
        """Handle a message of a closed round: a repetition, or one that was refused and is stored all the same."""
        for waiting in self._may_come_late:
            if message in waiting[subscriber]:
                waiting[subscriber].discard(message)
                return
        self.counts["repeated"] += 1
        if self.qos_of(subscriber, message) == 2:
            self.faults.append(f"{subscriber}: QoS 2, but not once: {message} came again in another round")

    def qos_of(self, subscriber: str, message: SentMessage) -> int:
        """The QoS at which a subscriber gets a message; -1: not at all."""
        key = (subscriber, message.topic, message.qos)
        if key not in self._qos:
            granted = [qos for name, qos in self.filters[subscriber].items() if matches(name, message.topic)]
            self._qos[key] = min(max(granted), message.qos) if granted else -1
        return self._qos[key]

    # --- rounds

    def mark(self) -> None:
        """Begin to watch which clients are served; see is_served()."""
        self._marks = dict(self.newest)
        self._reached.clear()

    def is_served(self, client_id: str) -> bool:
        """Whether, since mark(), a publisher's new message was acknowledged or delivered, or a subscriber got a new
        message.
        """
        return client_id in self._reached

    def close_round(self) -> list[str]:
        """Check the round, and forget it, so that memory does not grow. Returns the complaints.

        Call it only when everything sent is acknowledged or refused, and everything acknowledged is delivered.
        """
        found = self.complaints()
        late: dict[str, set[SentMessage]] = {}
        for subscriber in self.filters:
            delivered = self.delivered[subscriber]
            once = set(delivered)
            self.counts["repeated"] += len(delivered) - len(once)
            late[subscriber] = {
                each for each in self.sent if (each in self.refused or not each.qos) and each not in once
            }
        self._may_come_late.append(late)
        self._settled = dict(self.newest)
        for done in (self.sent, self.acked, self.refused, self.delivered, self.faults):
            done.clear()
        return found

    # --- waiting

    async def progress(self, events: int) -> None:
        """Wait until so many more acknowledgements and deliveries have come, or no more can come."""
        goal = self.events + events
        await self.wait(lambda: self.events >= goal or self.nothing_to_do, f"{events} more events")

    async def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition while events come. If they stop, record a fault and return."""
        seen = -1
        while seen != self.events:
            seen = self.events
            try:
                await until(lambda: bool(self.faults) or condition(), what)
                return
            except TimeoutError as error:
                reason = str(error)
        self.faults.append(reason)

    @property
    def nothing_to_do(self) -> bool:
        """Whether everything sent was acknowledged and delivered."""
        return len(self.acked | self.refused) == len(self.sent) and self.all_delivered

    @property
    def all_delivered(self) -> bool:
        """Whether everything acknowledged has reached all of its subscribers."""
        return all(map(self.has_all, self.filters))

    def has_all(self, subscriber: str) -> bool:
        """Whether everything acknowledged has reached this subscriber."""
        return not self._missing(subscriber)

    # --- judging

    def complaints(self) -> list[str]:
        """One line for each broken promise; a few of each kind."""
        found = self.faults[:SHOWN]
        for subscriber in self.filters:
            for kind, lines in (
                ("acknowledged, but not delivered", map(str, sorted(self._missing(subscriber)))),
                ("never sent, or not subscribed to", map(str, self._foreign(subscriber))),
                ("QoS 2 or 0, but not once", self._repeated(subscriber)),
                ("out of order", self._disorder(subscriber)),
            ):
                found += [f"{subscriber}: {kind}: {line}" for line, _ in zip(lines, range(SHOWN), strict=False)]
        return found

    def _missing(self, subscriber: str) -> set[SentMessage]:
        wanted = {message for message in self.acked if self.qos_of(subscriber, message) > 0}
        return wanted.difference(self.delivered[subscriber], self.expiring)

    def _foreign(self, subscriber: str) -> Iterator[SentMessage]:
        for message in self.delivered[subscriber]:
            if message not in self.sent or self.qos_of(subscriber, message) < 0:
                yield message

    def _repeated(self, subscriber: str) -> Iterator[str]:
        """Repeated deliveries that are not allowed. Publishers may repeat a QoS 1 message, but none of QoS 0."""
        for message, times in Counter(self.delivered[subscriber]).items():
            if times > 1 and (self.qos_of(subscriber, message) == 2 or message.qos == 0):
                yield f"{message} came {times} times"

    def _disorder(self, subscriber: str) -> Iterator[str]:
        """First deliveries of a publisher's messages to one topic at one QoS in which a later message came first.

        Refused messages are left out: they may be stored later. Expiring ones are left out: a second copy may outlive
        the first. A subscriber with QoS 0 may lose a first copy, so QoS 1 and 2 messages to it are left out as well.
        """
        streams: defaultdict[tuple[str, str, int], list[SentMessage]] = defaultdict(list)
        for message in dict.fromkeys(self.delivered[subscriber]):
            if message in self.refused or message in self.expiring:
                continue
            if message.qos and not self.qos_of(subscriber, message):
                continue
            streams[message.publisher, message.topic, self.qos_of(subscriber, message)].append(message)
        for stream in streams.values():
            yield from _descents(stream)


def _descents(stream: Iterable[SentMessage]) -> Iterator[str]:
    for earlier, later in pairwise(stream):
        if earlier.sequence > later.sequence:
            yield f"{later} after {earlier.sequence}"


async def until(
    condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S, every_s: float = 0.002
) -> None:
    """Wait for a condition. Raises TimeoutError with the name of what did not come."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        await asyncio.sleep(every_s)
