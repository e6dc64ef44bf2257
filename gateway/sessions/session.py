"""A client's session in this gateway: its subscriptions, and how far their messages have come.

What must outlive the process is a change in the log (store.state.changes); this object is what the log says, plus
what is only true while the client is connected: its link and a reader for each subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from gateway.mqtt._inflight import Inflight
from gateway.mqtt._mqtt import Reader
from gateway.sessions.connection import Connection
from gateway.sessions.group_subscription import GroupSubscription
from lightqueue.queues._queues import Queue
from lightqueue.reading.following import Followed
from notify.api import Page
from store.records._records import Records
from store.state.changes import Sent, SubscriptionState, WillState
from store.state.sessions import SessionState

NOTHING: frozenset[int] = frozenset()  # one for all: an empty set takes 216 bytes
NONE: Mapping[Any, Any] = MappingProxyType({})  # the same
LIVE_BESIDE = "\0"  # after a topic filter, which cannot contain it: the key of the filter's second reader


class OneReader(Mapping[str, Reader]):
    """The readers of a session with one subscription, as most have. A dict takes 136 bytes more."""

    __slots__ = ("_key", "_reader")

    def __init__(self, key: str, reader: Reader) -> None:
        self._key = key
        self._reader = reader

    def __getitem__(self, key: str) -> Reader:
        if key != self._key:
            raise KeyError(key)
        return self._reader

    def __iter__(self) -> Iterator[str]:
        yield self._key

    def __len__(self) -> int:
        return 1


@dataclass(slots=True)
class HeldMessage:
    """A message in flight that the session keeps itself: QoS 2, or QoS 1 from outside its queues (retained)."""

    log_offset: int
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...]
    released: bool = False
    owed: bool = False  # a retained message for a new subscription
    lost: int = 0  # messages in front of it that are lost, until it is sent
    is_shared: ClassVar[bool] = False  # as a DealtMessage is


@dataclass(frozen=True, slots=True)
class MorePages:
    """Retained messages of topics after `after` are to be listed, up to log_offset `end`."""

    subscription: SubscriptionState
    after: str
    end: int


@dataclass(slots=True, eq=False)
class RetainedBatch:
    """Retained messages for a subscription that ends with its connection, so that the log does not have what was sent.

    None of them goes out at QoS 2. Sessions that take the same page have lists of the same log_offsets.
    """

    log_offsets: list[int]
    qos: int  # the subscription's
    subscription_ids: tuple[int, ...]
    topic_filter: str  # the subscription's
    then: Callable[[], object] | None = None  # once all of them are sent
    more: MorePages | None = None  # what `then` does, as data
    sent: int = 0
    asked_from: int = 0


class LaterReader(NamedTuple):
    """A reader that comes to messages of a replay once the replay is over. It sends those that match both."""

    reached: int  # log_offset
    topic_filter: str
    no_local: bool


@dataclass(slots=True, eq=False)
class HistoryReplay:
    """History that a subscription is given from the log, before what its queues have."""

    subscription: SubscriptionState
    next: int  # log_offset to go on from
    stop: int
    resumes: bool = False  # the session has a right to it: it was away, or slow, for longer than the log keeps
    asked: bool = False  # for the next page
    ahead: Page | None = None  # a page that has come: the next one to be sent
    lost: int = 0  # messages in front of the next one that are lost
    page: tuple[Reader, Records] | None = None  # a page that is on its way, and how far it is sent
    later: list[LaterReader] | None = None  # of the same session; None: no page has come so far
    start: int = field(init=False)
    reached: int = field(init=False)  # log_offset before which everything is on its way

    def __post_init__(self) -> None:
        self.start = self.reached = self.next


BacklogItem = int | HeldMessage | RetainedBatch
"""Sent before anything from the queues: a packet_id that is in flight, or messages that are not in flight so far."""


class Session:
    """Owned by the SessionRegistry; `link` is the connection that has it, or None."""

    __slots__ = (
        "acked",
        "backlog",
        "client_id",
        "expiry_s",
        "frontier",
        "given_back",
        "inflight",
        "link",
        "listings",
        "logged",
        "readers",
        "reading",
        "received",
        "replays",
        "shares",
        "skip",
        "untold",
        "will",
    )

    def __init__(self, client_id: str, log_offset: int) -> None:
        self.client_id = client_id
        self.link: Connection | None = None
        self.expiry_s = 0
        self.logged = False  # the store knows it, so its changes go to the log
        self.reading = False  # its readers are there; until then `frontier` says how far it came
        self.inflight = Inflight(1)
        self.readers: Mapping[str, Reader] = NONE  # while connected: topic_filter → the subscription's reader
        self.shares: Mapping[str, GroupSubscription[Session]] = NONE  # by topic_filter
        self.given_back: Mapping[int, int] = NONE  # log_offset → packet_id, of what is in groups again
        self.untold: tuple[int, ...] = ()  # log_offset of what is in flight first in each round not yet in the log
        self.received: set[int] | frozenset[int] = NOTHING  # packet identifiers of QoS 2 publishes not yet released
        self.frontier = log_offset  # everything before it was put in flight at least, when the last connection ended
        self.acked = log_offset  # the position that the log has
        # QoS 2 messages past the frontier that were put in flight all the same
        self.skip: frozenset[int] = NOTHING
        self.will: WillState | None = None
        self.listings = 0  # of retained messages that go on: what is newer has to wait
        self.replays: list[HistoryReplay] | tuple[()] = ()
        self.backlog: deque[BacklogItem] | tuple[()] = ()  # to be sent before anything more from the queues

    @property
    def has_something_first(self) -> bool:
        """Whether the session sends something before anything more from its queues."""
        return bool(self.backlog or self.listings or self.replays)

    @property
    def connection(self) -> Connection:
        """The link, where it is known that there is one."""
        assert self.link is not None
        return self.link

    def receive(self, packet_id: int) -> None:
        """A QoS 2 publish of the client's was taken in."""
        if not isinstance(self.received, set):
            self.received = set(self.received)
        self.received.add(packet_id)

    def attach(self, link: Connection, window: int) -> None:
        """A connection takes the session."""
        self.link = link
        self.inflight.window = window
        link.session = self
        link.inflight = self.inflight
        link.client_id = self.client_id
        link.durable = self.expiry_s > 0

    def add_readers(self, subscription: SubscriptionState, followed: list[Followed], start: int) -> list[Reader]:
        """Read for one subscription what these queues give it, from log_offset `start` on."""
        keys = (subscription.topic_filter, subscription.topic_filter + LIVE_BESIDE)
        return [self._read(each, subscription, start, key) for each, key in zip(followed, keys, strict=False)]

    def _read(self, followed: Followed, subscription: SubscriptionState, start: int, key: str) -> Reader:
        reader = self.reader_of(followed.queue, subscription)
        reader.position = followed.position
        reader.only_live = followed.only_live
        reader.since = reader.reached = start
        self.put_reader(key, reader)
        return reader

    def put_reader(self, key: str, reader: Reader) -> None:
        """Add a reader to the session; `key`: its topic filter, with LIVE_BESIDE for a filter's second reader."""
        if isinstance(self.readers, dict):
            self.readers[key] = reader
        else:
            self.readers = {**self.readers, key: reader} if self.readers else OneReader(key, reader)
        self._mark_alone(reader)

    def reader_of(self, queue: Queue, subscription: SubscriptionState) -> Reader:
        """A reader of a queue from its beginning, with the options of a subscription."""
        reader = Reader(queue, self, subscription.topic_filter)
        reader.qos = subscription.qos
        reader.no_local = subscription.no_local
        reader.retain_as_published = subscription.retain_as_published
        reader.subscription_id = subscription.subscription_id
        reader.link = self.link
        return reader

    def readers_of(self, topic_filter: str) -> list[Reader]:
        """The reader, or the two readers, of one subscription."""
        keys = (topic_filter, topic_filter + LIVE_BESIDE)
        return [self.readers[key] for key in keys if key in self.readers]

    def drop_readers(self, topic_filter: str) -> list[Reader]:
        """Take away what reads for one subscription; empty if there is no such subscription."""
        dropped = self.readers_of(topic_filter)
        if self.replays:
            self.replays = [each for each in self.replays if each.subscription.topic_filter != topic_filter]
        if isinstance(self.readers, dict):
            for key in (topic_filter, topic_filter + LIVE_BESIDE):
                self.readers.pop(key, None)
        elif dropped:
            self.readers = NONE
        if dropped and len(self.readers) == 1:
            self._mark_alone(*self.readers.values())
        return dropped

    def add_share(self, topic_filter: str, share: GroupSubscription[Session]) -> None:
        if not isinstance(self.shares, dict):
            self.shares = {}
        self.shares[topic_filter] = share

    def drop_share(self, topic_filter: str) -> None:
        if isinstance(self.shares, dict):
            self.shares.pop(topic_filter, None)
        self.shares = self.shares or NONE

    def _mark_alone(self, changed: Reader) -> None:
        """A reader that has no other beside it takes the shared path of delivery."""
        changed.alone = len(self.readers) == 1
        if len(self.readers) == 2:
            for reader in self.readers.values():
                reader.alone = False

    def is_told(self) -> None:
        """The log knows of the oldest round."""
        self.untold = self.untold[1:]

    def position(self, end: int) -> int:
        """log_offset before which everything is done with: acknowledged, or not to be acknowledged."""
        oldest = self.inflight.oldest()
        return min((int(oldest) if oldest is not None else self.read_until(end), *self.untold))

    def read_until(self, end: int) -> int:
        """log_offset up to which the readers have come, and the log knows of it; `end` if they have no more to read."""
        if not self.reading:
            return self.frontier
        readers = (reader for reader in self.readers.values() if reader.qos)
        reached = min((reader.reached if reader.lag else max(reader.reached, end) for reader in readers), default=end)
        return min((reached, *self.untold, *(replay.reached for replay in self.replays if replay.resumes)))


def restored(state: SessionState) -> Session:
    """A session as the log left it."""
    session = Session(state.client_id, state.acked)
    session.frontier = max(state.frontier, state.acked)
    session.logged = True
    session.received = set(state.received) or NOTHING
    session.skip = _past_frontier(state)
    session.inflight.load(state.inflight, state.acked)
    for packet_id, sent in state.sent.items():
        outgoing = _as_outgoing(sent)
        outgoing.released = packet_id in state.released
        session.inflight.restore(packet_id, outgoing)
    if state.shared:
        session.given_back = {log_offset: packet_id for packet_id, log_offset in _unpacked(state.shared)}
    if state.owed:
        session.backlog = deque(map(_as_outgoing, state.owed))
    return session


def as_sent(packet_id: int, outgoing: HeldMessage) -> Sent:
    return Sent(packet_id, outgoing.log_offset, outgoing.qos, outgoing.retain, outgoing.subscription_ids, outgoing.owed)


def packed_inflight(messages: Iterable[tuple[int, int]]) -> bytes:
    """(packet_id, log_offset) of messages as in SessionClosed."""
    return b"".join(
        packet_id.to_bytes(2, "little") + log_offset.to_bytes(8, "little") for packet_id, log_offset in messages
    )


def _unpacked(data: bytes) -> Iterable[tuple[int, int]]:
    parts = (data[at : at + 10] for at in range(0, len(data), 10))
    return ((int.from_bytes(part[:2], "little"), int.from_bytes(part[2:], "little")) for part in parts)


def _past_frontier(state: SessionState) -> frozenset[int]:
    """log_offsets that are not sent from the queues, although no position covers them."""
    streamed = [sent.log_offset for sent in state.sent.values() if not sent.owed]
    return frozenset(state.done.union(streamed)) if state.done or streamed else NOTHING


def _as_outgoing(sent: Sent) -> HeldMessage:
    return HeldMessage(sent.log_offset, sent.qos, sent.retain, sent.subscription_ids, owed=sent.owed)
