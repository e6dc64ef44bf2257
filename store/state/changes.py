"""State changes as they stand in the log: the payloads of all record types but MESSAGE and BATCH, as msgpack arrays."""

from typing import Literal

import msgspec

from store.records.records import RecordType
from store.state.group_settings import GroupSettings


class Change(msgspec.Struct, array_like=True, frozen=True):
    """Base of all changes; each concerns one session, a queue, a peer or a consumer group."""


class WillState(Change, frozen=True):
    """A will as it would be published; `delay_s` counts from the end of the connection.

    `left_by`: who left it (store.state.left_by), to be judged before it is sent; empty: it is not judged.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    delay_s: int
    left_by: bytes = b""


class SubscriptionState(Change, frozen=True):
    """One subscription; messages from log_offset `since` on belong to it (filled in when it is applied)."""

    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    subscription_id: int = 0
    since: int = 0


class SessionOpened(Change, frozen=True):
    """A connection took the session; `clean_start` forgets what was there.

    `holder` is the name of the peer that has the connection, empty for a gateway in the store's own process. `user`
    owns the session from now on, if no other one does; empty: an anonymous client. None: an older gateway did not say.
    `renewed`: the client was told that it has no session, as records of it are lost (store.state.sessions.renewed).
    """

    client_id: str
    clean_start: bool
    session_expiry_interval: int
    will: WillState | None = None
    holder: str = ""
    user: str | None = None
    renewed: bool = False


class SessionAssigned(Change, frozen=True):
    """An operator gave the session to a user."""

    client_id: str
    user: str


class SessionClosed(Change, frozen=True):
    """The connection ended; the will stays only if it is still to be sent.

    All before log_offset `frontier` was put in flight, and of it `inflight` is not acknowledged: for each message its
    packet_id (2 bytes) and log_offset (8), little-endian, oldest first. `shared`: the same of what went back to groups.
    `acked`: as in Progress; 0: it is where it was. `will_grace_s`: the gateway stopped, so the will waits at least as
    long for the client to come back, whatever its own delay, and is not sent if it does.
    """

    client_id: str
    session_expiry_interval: int
    keep_will: bool
    frontier: int = 0
    inflight: bytes = b""
    shared: bytes = b""
    acked: int = 0
    will_grace_s: int = 0


class SessionEnded(Change, frozen=True):
    """The session expired."""

    client_id: str


class Subscribed(Change, frozen=True):
    client_id: str
    subscriptions: list[SubscriptionState]


class Unsubscribed(Change, frozen=True):
    client_id: str
    topic_filters: list[str]


class Sent(Change, frozen=True):
    """A message given a packet identifier that must outlive a crash (QoS 2, and what is not in a queue)."""

    packet_id: int
    log_offset: int
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...] = ()
    owed: bool = False  # a retained message for a new subscription: it comes from no queue, and no position covers it


class Progress(Change, frozen=True):
    """How far a session has come. `acked` moves on acknowledgement only."""

    client_id: str
    acked: int = 0
    sent: list[Sent] = []
    released: list[int] = []
    completed: list[int] = []
    received_done: list[int] = []
    owed: list[Sent] = []  # to be sent later; without a packet_id so far (0)


class WillFired(Change, frozen=True):
    client_id: str


class QueueDropped(Change, frozen=True):
    topic_filters: list[str]


PeerOwner = tuple[str | None, str]


class PeerAppended(Change, frozen=True):
    """The last record of what a peer appended: it has come as far as `sequence`.

    `name`: a client's has its namespace in front, as a client identifier does; older stores left that out. `refused`
    are ranges (first, last) of those before that were not taken, as long as the peer may not know it. Where the record
    of a client's stands says where its messages do, and is remembered. `counted`: what of them counts for `user`, the
    client's: bits of store.state.usage.Counted, the topic, its bytes, due_ms, and how far in front of this record it
    stands. `owner`: the client's (user, namespace as in its Hello), to whom the name belongs; the user None: users are
    not known there; None: a gateway's, or an older store did not say.
    """

    name: str
    sequence: int
    refused: tuple[tuple[int, int], ...] = ()
    is_client: bool = False
    user: str = ""
    counted: tuple[tuple[int, str, int, int, int], ...] = ()
    owner: PeerOwner | None = None


class PeerGone(Change, frozen=True):
    """A peer is given up: should it come back, it begins anew."""

    name: str


class GroupMade(Change, frozen=True):
    """A consumer group was made, which begins at `queue_offset`; or an existing group has new settings.

    `user` made it; empty: an anonymous client, None: users are not known there. `is_shared`: a shared subscription did,
    so that it goes when no session has one and it holds nothing; one that is not shared any more stays. `end`: where
    its queue ended then, if the group is new; -1: it is not, or an older store did not say. `paused`: it deals nothing.
    `tag`: which messages it has, and with which priorities, as in tags_of(); empty: all.
    """

    name: str
    topic_filter: str
    settings: GroupSettings
    queue_offset: int
    user: str | None = None
    is_shared: bool = False
    end: int = -1
    paused: bool = False
    tag: str = ""


class HeldRange(msgspec.Struct, array_like=True, frozen=True):
    """Messages that a consumer has (`serial`; see store.state.groups), or that wait for a retry (0).

    They are handed out again at `due_ms`. `ranges`: queue_offset of the first and how many, again and again.
    """

    due_ms: int
    deliveries: int
    serial: int
    partition: int
    ranges: tuple[int, ...]


class GroupAdvanced(Change, frozen=True):
    """Progress of a group since its last GroupAdvanced.

    `held` is what is not done with. `positions` are (partition, queue_offset): what lies between the one before and
    this one, and is not held, is done with. So is `done`, as in `held.ranges`: what was held. `dead` of it became
    dead letters.

    For a log that lost other records of the group: `end` is the queue_offset at which its queue ended then, `acked` the
    one before which everything was done with (-1: not said), and `partitions` how many it has.
    """

    name: str
    topic_filter: str
    positions: tuple[tuple[int, int], ...] = ()
    held: tuple[HeldRange, ...] = ()
    done: tuple[int, ...] = ()
    dead: int = 0
    end: int = -1
    acked: int = -1
    partitions: int = 0


class GroupOffsetReset(Change, frozen=True):
    """A group goes on at `queue_offset`, whatever it held; `end`: see GroupAdvanced."""

    name: str
    topic_filter: str
    queue_offset: int
    end: int = -1


class GroupDropped(Change, frozen=True):
    """A consumer group was deleted."""

    name: str
    topic_filter: str


class DelayedEnded(Change, frozen=True):
    """Delayed messages that are not to be dispatched any more: due_ms of each, and where it was first stored."""

    messages: list[tuple[int, int]]


class TopicsGone(Change, frozen=True):
    """The log has no message of these topics any more, so they count for no user."""

    topics: list[str]


BanKind = Literal["address", "user", "client_id"]


class BanSet(Change, frozen=True):
    """No client of this address, user or client_id (`kind`) comes in until Unix time `until_ms`; 0: until it is lifted.

    It takes the place of the ban with the same value. `set_by`: the operator, or the gateway of an automatic one.
    """

    kind: BanKind
    value: str
    until_ms: int = 0
    reason: str = ""
    set_by: str = ""
    automatic: bool = False


class BanLifted(Change, frozen=True):
    """A ban was lifted."""

    kind: BanKind
    value: str
    lifted_by: str = ""


WhenBehind = Literal["drop", "refuse"]


class ReaderAdvanced(Change, frozen=True):
    """A reader of the log is done with all before `log_offset`: retention keeps the log from there on.

    Up to `most_behind_bytes` of it; 0: as many as the store's settings say. If the reader is further behind, retention
    drops what it has not read, or (`refuse`) keeps it, and the store takes no messages.
    """

    name: str
    log_offset: int
    most_behind_bytes: int = 0
    when_behind: WhenBehind = "drop"


class ReaderForgotten(Change, frozen=True):
    """Retention waits for it no longer."""

    name: str
    forgotten_by: str = ""


class ReaderLost(Change, frozen=True):
    """Retention drops all before `end`, part of which the reader has not read. Written by the store only."""

    name: str
    end: int


class SegmentsDropped(Change, frozen=True):
    """The store that leads a cluster drops all before `end`, and so do the others. A store alone writes none."""

    end: int


TYPES: dict[RecordType, type[Change]] = {
    RecordType.SESSION_OPENED: SessionOpened,
    RecordType.SESSION_CLOSED: SessionClosed,
    RecordType.SESSION_ENDED: SessionEnded,
    RecordType.SUBSCRIBED: Subscribed,
    RecordType.UNSUBSCRIBED: Unsubscribed,
    RecordType.PROGRESS: Progress,
    RecordType.WILL_FIRED: WillFired,
    RecordType.QUEUE_DROPPED: QueueDropped,
    RecordType.PEER_APPENDED: PeerAppended,
    RecordType.PEER_GONE: PeerGone,
    RecordType.SESSION_ASSIGNED: SessionAssigned,
    RecordType.GROUP_MADE: GroupMade,
    RecordType.GROUP_ADVANCED: GroupAdvanced,
    RecordType.GROUP_RESET: GroupOffsetReset,
    RecordType.GROUP_DROPPED: GroupDropped,
    RecordType.DELAYED_ENDED: DelayedEnded,
    RecordType.TOPICS_GONE: TopicsGone,
    RecordType.BAN_SET: BanSet,
    RecordType.BAN_LIFTED: BanLifted,
    RecordType.READER_ADVANCED: ReaderAdvanced,
    RecordType.READER_FORGOTTEN: ReaderForgotten,
    RecordType.READER_LOST: ReaderLost,
    RecordType.SEGMENTS_DROPPED: SegmentsDropped,
}
_RECORD_TYPES = {change: record_type for record_type, change in TYPES.items()}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Change]] = {
    record_type: msgspec.msgpack.Decoder(change) for record_type, change in TYPES.items()
}
_encoder = msgspec.msgpack.Encoder()


def encode_change(change: Change) -> tuple[RecordType, bytes]:
    return _RECORD_TYPES[type(change)], _encoder.encode(change)


def decode_change(record_type: int, payload: bytes) -> Change:
    return _DECODERS[record_type].decode(payload)
