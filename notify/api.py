"""A message store for a gateway, in this process or over the wire: the gateway cannot tell which it has.

An answer that another process may have to give comes to a callback, at once or in a later turn. Requests are answered
in the order in which they were made, appends included, so a request after an append sees what the append changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from lightqueue.queues._queues import Queue
from lightqueue.queues.left_messages import Allowed, LeftMessage
from lightqueue.reading.following import Followed
from notify.limits import StoreBans, StoreQuotas
from notify.owners import UNJUDGED, Claimant, ClaimDenied
from store.errors import StoreError
from store.records._records import RecordBatch, Records
from store.records.records import lost_of, read_records
from store.state.changes import GroupAdvanced
from store.state.group_settings import GroupSettings
from store.state.group_states import GroupKey
from store.state.sessions import SessionState
from store.wire.messages import Failed, FailureCode, Scanned
from store.wire.operator_messages import BansTold, ClientDetails, Disconnect, GatewayReport, LoginsEnded
from store.wire.pace_messages import Slow

Told = BansTold | Disconnect | LoginsEnded | Slow
"""What a store tells gateways without a request."""
HISTORY_PAGE_BYTES = 256 << 10


class RetainedMessage(NamedTuple):
    """A retained message, as far as a gateway must know it before it sends it."""

    log_offset: int
    qos: int
    client_id: bytes


class RetainedPage(NamedTuple):
    """Some of the retained messages that a filter matches. `after`: the topic to go on after, None at the end."""

    messages: list[RetainedMessage]
    after: str | None


RecordsAt = dict[int, tuple[Records, int] | None]
"""By log_offset: the record, None if it is not kept any more. Records that are missing here were not looked up yet."""


class LeasedMessages(NamedTuple):
    """Messages of a group that one consumer was given, with their receipts and how often each was given out."""

    records: Records
    ranges: Sequence[tuple[int, int, int, int]]  # serial, deliveries, queue_offset of the first, number; in this order


Receipt = tuple[int, int, int]
"""Messages of a group: their serial, the queue_offset of the first, and how many."""


class GroupConsumer(Protocol):
    """A consumer of a group."""

    @property
    def settings(self) -> GroupSettings:
        """The settings of the group, as far as this process knows them."""

    def want(self, most: int, max_bytes: int, invisible_ms: int) -> None:
        """Ask for messages once. They come as soon as there are some; ask for no others meanwhile."""

    def stop(self) -> None:
        """Take back what want() asked for."""

    def ack(self, receipts: list[Receipt], then: Callable[[], None] | None = None) -> None:
        """Acknowledge messages. `then` is called once the log has that, or never."""

    def extend(self, receipts: list[Receipt], invisible_ms: int) -> None:
        """Keep these messages for so long, from now on."""

    def give_back(self, receipts: list[Receipt]) -> None:
        """Other consumers may have them."""

    def close(self) -> None:
        """Leave the group. Other consumers get what this one has."""


EVENTS = ("followed", "other", "missed")
"""A queue grew that is followed here; one that is not; one that had grown without an event."""


class StoreListener(Protocol):
    """The events that each user of a store is told."""

    def wake(self) -> None:
        """Tell the user that there are events to take soon."""

    def safe_advanced(self) -> None:
        """`safe` or `safe_mark` is higher than before."""


class SessionListener(Protocol):
    """The events for a user of a store that has clients' sessions."""

    def taken_over(self, client_id: str) -> None:
        """End the connection of a session that another user of the store claims, and append what is left of it."""

    @property
    def can_judge(self) -> bool:
        """Whether judge() can be called."""

    def judge(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> None:
        """Messages that clients left are due: find out whether they may be sent."""

    def describe(self, client_id: str, then: Callable[[ClientDetails | None], None]) -> None:
        """Describe a client that is connected; None: there is none, or it is not known in time."""

    def report(self, after: int, then: Callable[[GatewayReport | None], None]) -> None:
        """Say what a gateway is and counts, its figures after the first `after`; None: it is not known in time."""

    def told(self, message: Told) -> None:
        """Bans were set or lifted, an operator ends a client's connection, or gateways are behind."""


class GatewayListener(StoreListener, SessionListener, Protocol):
    """The events for a gateway. A store in this process calls the methods below only where another process had it."""

    def unlogged(self) -> list[tuple[str, str]]:
        """Clients that are connected and of whom the log knows nothing: their client_ids and users."""

    def refused(self, mark: int, error: StoreError) -> None:
        """The store did not take the append that this mark stands for."""

    def lost_entries(self, queue: Queue, position: int, log_offset: int, known_to: int | None = None) -> None:
        """The store is another process now, and what this queue had in memory is gone. It goes on at this queue_offset,
        with what the log has after `log_offset`; called before it ends there.

        `known_to`: log_offset up to which it was known where the queue ends; None: as far as the store said.
        """

    def disowned(self, mark: int, error: StoreError) -> None:
        """The store gave up on this gateway: its sessions may be elsewhere, and no append up to this mark counts."""


Placed = Callable[[int, int, int], None]
"""(first, size, log_offset): of a batch, `size` bytes from `first` on stand in the log from log_offset on.

-1: they are stored, but where is not known any more. Called before they count as safe.
"""


# --- stored messages: any topic filter, in the order of the log, a page at a time


class Past(NamedTuple):
    """A message: where it is, and what it takes to decide how it is delivered."""

    log_offset: int
    qos: int
    retain: bool
    client_id: bytes
    lost: int = 0  # messages that stood directly in front of it and are lost
    topic: bytes = b""


class Page(NamedTuple):
    """Records in the order of the log, and the log_offset to go on from; after the last page that is `stop`."""

    records: bytes
    next: int


class SoughtPosition(NamedTuple):
    """A log_offset; if that is not what was sought so far, the one to go on from."""

    log_offset: int
    found: bool


class History(Protocol):
    """See Store.history. Both give None where there is no answer: no such position, or the store has a fault."""

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[SoughtPosition | None], None]) -> None:
        """log_offset that `earliest`, `-1h` or an RFC 3339 time stands for; `start`: to go on from, 0 at first."""

    def may_have(self, log_offset: int) -> bool:
        """True if the tier may have messages from a log_offset on that the log has dropped."""

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        """Messages that match, from log_offset `start` on and before `stop`; perhaps none, with more after. None, and
        `next` is `start`: they cannot be read now, ask again later."""


def pasts_of(data: bytes) -> list[Past]:
    """The messages that records hold."""
    return [
        Past(record.log_offset, record.qos, record.retain, bytes(record.client_id), lost_of(record), record.topic)
        for record in read_records(memoryview(data))
    ]


def page_of(answer: object, records: bytes, start: int) -> Page | None:
    """The page that an answer to a Scan from `start` on is; an empty one that ends there: the store has it, but cannot
    read it now. None: it has no such position."""
    if isinstance(answer, Scanned):
        return Page(records, answer.next)
    is_later = isinstance(answer, Failed) and answer.code == FailureCode.UNAVAILABLE
    return Page(b"", start) if is_later else None


# --- what a store is asked


class StoreStatus(Protocol):
    """Figures of a whole store."""

    @property
    def stored_messages(self) -> int:
        """Messages given to their queues since the start, replayed ones included."""

    @property
    def log_bytes(self) -> int: ...

    @property
    def retained(self) -> int:
        """Topics with a retained message."""

    @property
    def subscriptions(self) -> int:
        """Subscriptions of all sessions that the log knows."""

    @property
    def absent_sessions(self) -> int:
        """Sessions whose client is not connected."""

    @property
    def expired_sessions(self) -> int: ...

    def sessions_by_namespace(self, most: int) -> dict[str, float]:
        """Sessions of each namespace, of those that have the most."""


class StoreAppends(Protocol):
    """The way into a store. A mark stands for what was appended until then."""

    def append(self, batch: RecordBatch, placed: Placed | None = None) -> None:
        """Store records. Raises a StoreError at once, or has the journal told later that the batch was refused."""

    def await_safe(self) -> None:
        """A client waits for everything appended so far to be safe. Without this call that may take a moment longer."""

    @property
    def mark(self) -> int:
        """Stands for everything appended so far; compare with safe_mark."""

    @property
    def safe_mark(self) -> int:
        """Every append up to this mark is as durable as the flush policy promises."""


class StoreSessions(Protocol):
    """The sessions of clients, each at one gateway at most."""

    @property
    def are_ours(self) -> bool:
        """No other gateway can have the sessions that were claimed here. If not, deliver nothing for now."""

    def claim(
        self,
        client_id: str,
        clean_start: bool,
        then: Callable[[SessionState | ClaimDenied | None], None],
        claimant: Claimant = UNJUDGED,
    ) -> None:
        """Claim a session for this gateway alone; `then` gets the log's state of the session, None if it is new.

        A connection that has it elsewhere is ended first. With `clean_start` what was there is ended. A claim that is
        refused changes nothing.
        """

    def release(self, client_id: str) -> None:
        """The connection that has the session ended. (Where the log is told, SessionClosed says so instead.)"""


class StoreQueues(Protocol):
    """The queues of a store: what is followed of them, and what they have."""

    is_live_only: Callable[[bytes], bool] | None
    """Says of a topic whether its messages go to no stored queue; None: no topic's do."""
    weigh: Callable[[bytes], tuple[int, list[Queue]]] | None
    """Says to how many queues a topic's messages go, and which of them have readers; None: that is not known here."""

    @property
    def generation(self) -> int:
        """The version of the answers of weigh(): a topic that was weighed under an older one must be weighed again."""

    @property
    def events(self) -> Mapping[str, int]:
        """Counts of events from another process, by their use (EVENTS)."""

    @property
    def end(self) -> int:
        """log_offset after the newest record; all before it are known to be in their queues."""

    @property
    def safe(self) -> int:
        """log_offset before which every record is as durable as the flush policy promises."""

    # --- following queues

    def collect_grown(self) -> list[Queue]:
        """Followed queues of which there is more to read than at the last call."""

    def follow(
        self, topic_filter: str, start: int, history: bool, spills: bool, then: Callable[[list[Followed]], None]
    ) -> None:
        """Follow a topic filter: from now on each matching message gets an entry in these queues, and an event.

        `start`: log_offset to begin at, or FROM_NOW. `history`: those before now are wanted as well, which may take a
        queue of its own beside live-only messages. `spills`: nothing may be lost to a slow reader (QoS 1 and 2).
        `then` gets no queue if the store refuses to follow one more.
        """

    def unfollow(self, queue: Queue) -> None:
        """End one follow() of a queue. Call this as often as the queue was followed."""

    def locate(self, topic_filter: str, where: str, then: Callable[[int | None], None]) -> None:
        """queue_offset that `earliest`, `-1h`, an RFC 3339 time or a number stands for; None if there is none.

        `=LOG_OFFSET`: of the message that stands there.
        """

    def needed_from(self, floors: Iterable[tuple[Queue, int]]) -> None:
        """Entries of LIVE queues before these queue_offsets are not needed any more."""

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records | None:
        """A range of a queue, valid until the next append; None if it is on its way: then the queue grows once more.

        Its `first` is above `start` where retention has dropped some, and may be below.
        """

    def read_many(self, queues: list[Queue], starts: list[int], most: int, max_bytes: int) -> Sequence[Records | None]:
        """Like read() for each of some queues."""

    def read_at(self, log_offsets: list[int], max_bytes: int, then: Callable[[], None]) -> RecordsAt | None:
        """Records by their position, as many as there is room for; None if they are on their way, to be asked again."""

    def retained(self, topic_filter: str, after: str | None, then: Callable[[RetainedPage], None]) -> None:
        """The retained messages that a filter matches, a page at a time."""


class StoreGroups(Protocol):
    """The consumer groups of a store."""

    def join(
        self,
        group: GroupKey,
        consumer: str,
        if_new: GroupSettings,
        start: str,
        handed: Callable[[LeasedMessages], None],
        then: Callable[[GroupConsumer | str], None],
        user: str | None = None,
    ) -> None:
        """Be a consumer of a group (name, topic_filter) that is made with settings `if_new` if it is not there.

        Then it begins at `start`, as in locate(), or `latest`; where the filter's queue lacks messages from there on it
        is refused. `handed` gets what was wanted; `then` why not if the group is not to be had. `user`: for whom it is
        made; None: users are not known here.
        """

    def will_take(self, taken: list[GroupAdvanced]) -> None:
        """The next append says this of messages that were handed out to us: the group is done with them then."""


class Store(Protocol):
    """A message store, as one gateway sees it: the gateway cannot tell whether it is in the same process."""

    history: History
    status: StoreStatus | None
    """How the whole store is, for $SYS and metrics; None where that is not known here."""
    answers_at_once: bool
    """An answer comes within the call that asks for it, so a look-up takes the time of this process."""
    max_delay_s: int
    """Longest delay that a message may have."""
    is_certain: bool
    """An append that did not fail at once gets into the log before all that follow. If not, it or they may get lost."""
    reached_s: float
    """When the store was connected the last time, in seconds of the loop's clock."""
    heard_s: float
    """Until when the store is known to have been there since then."""
    unconfirmed: str
    """What the log says of an append that did not become safe in time."""

    @property
    def appends(self) -> StoreAppends: ...

    @property
    def sessions(self) -> StoreSessions: ...

    @property
    def queues(self) -> StoreQueues: ...

    @property
    def groups(self) -> StoreGroups: ...

    @property
    def quotas(self) -> StoreQuotas:
        """The quotas of users."""

    @property
    def bans(self) -> StoreBans:
        """The bans that keep clients out of all gateways."""

    def listen(self, listener: GatewayListener) -> None:
        """Tell this gateway from now on. Call this once, before anything else."""

    # --- the gateway's turn

    def turn_begins(self) -> None:
        """Requests from here on go out together, when the turn ends."""

    def turn_ends(self) -> None: ...

    # --- several times a second

    def tick(self) -> bool:
        """Do what upkeep is due. True if there is more to do at once."""

    def now_ms(self) -> int:
        """Unix time by the store's clock, which stamps messages and so is the one that they expire by."""

    def due_ms(self, delay_s: int) -> int:
        """When a delay that begins now is over, by the store's clock; rather late than early."""

    def fault(self) -> str:
        """The reason why messages cannot be stored now; empty if they can."""

    @property
    def congested(self) -> bool:
        """True if so much waits to be stored, or for subscribers, that publishers should not be read from now."""

    def lags(self, is_behind: bool) -> None:
        """Whether subscribers that read are far behind in messages of QoS 0: then publishers are listened to less."""

    @property
    def patience_s(self) -> float:
        """The time in which an append must become safe, while the store is reached; otherwise it counts as failed."""


class _NoListener:
    """A GatewayListener that does nothing, until there is one."""

    can_judge = False

    def judge(self, messages: Sequence[LeftMessage], then: Callable[[Allowed], None]) -> None: ...

    def describe(self, client_id: str, then: Callable[[ClientDetails | None], None]) -> None:
        then(None)

    def report(self, after: int, then: Callable[[GatewayReport | None], None]) -> None:
        then(None)

    def wake(self) -> None: ...

    def safe_advanced(self) -> None: ...

    def taken_over(self, client_id: str) -> None: ...

    def unlogged(self) -> list[tuple[str, str]]:
        return []

    def refused(self, mark: int, error: StoreError) -> None: ...

    def told(self, message: Told) -> None: ...

    def lost_entries(self, queue: Queue, position: int, log_offset: int, known_to: int | None = None) -> None: ...

    def disowned(self, mark: int, error: StoreError) -> None: ...


NO_LISTENER = _NoListener()
