"""Requests of operators to a store, and the messages about them between a store and its gateways."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from store.state.changes import BanKind, WhenBehind
from store.state.receiver_states import ReceiverState
from store.wire.base import Count, Items, LogOffset, Name, Positive, TopicFilter, WireMessage

BanValue = Annotated[str, Meta(min_length=1, max_length=65_535)]
Line = Annotated[str, Meta(max_length=1_024)]
MOST_LOGINS = 200
"""Of one LoginsEnded."""


class BanInfo(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A ban, until Unix time `until_ms` (0: until it is lifted), by whom and since when."""

    kind: BanKind
    value: BanValue
    until_ms: Count
    reason: Line
    set_by: Line
    automatic: bool
    set_ms: Count


class BansTold(WireMessage, frozen=True):
    """To a gateway: bans that were set, and (kind, value) of those that were lifted. `anew`: it has no others."""

    bans: Annotated[list[BanInfo], Items]
    lifted: Annotated[list[tuple[BanKind, BanValue]], Items]
    anew: bool


class Disconnect(WireMessage, frozen=True):
    """To the gateway that has the client: end its connection (0x98), with a line for people."""

    client_id: Name
    reason: Line


class BanMade(WireMessage, frozen=True):
    """A gateway made a ban by itself, for others to have it too."""

    kind: BanKind
    value: BanValue
    until_ms: Count
    reason: Line


class LoginEnd(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The end of a login: `right`, `wrong`, or `unheard` (refused without a check of its password)."""

    source: Annotated[str, Meta(max_length=64)]
    """The address, or the network, by which failures are counted."""
    user: Line
    """Of a longer name a part and a digest."""
    how: Literal["right", "wrong", "unheard"]


class LoginsEnded(WireMessage, frozen=True):
    """Logins that ended in another process: a gateway tells the store, and the store all other gateways."""

    ends: Annotated[list[LoginEnd], Meta(max_length=MOST_LOGINS)]


class ListClients(WireMessage, frozen=True):
    """Sessions whose client_ids begin with `prefix`, connected or not; `online`: only those with a connection.

    `after`: 0, or `next` of the last answer to this connection.
    """

    prefix: Name
    online: bool
    after: Count


class ClientInfo(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A session. `user` is None where it is not known; `gateway` and `address` (empty: not known) of its connection.

    `since_ms`: Unix time since when it is connected or is not (0: not known). `subscriptions` are those in the log.
    """

    client_id: Name
    user: Name | None
    online: bool
    gateway: Name
    address: Name
    since_ms: Count
    subscriptions: Count
    session_expiry_interval: Count


class ClientsListed(WireMessage, frozen=True):
    """Clients, in no order. `next`: what to ask for `after`; None: that was all."""

    clients: Annotated[list[ClientInfo], Items]
    next: Count | None


class ShowClient(WireMessage, frozen=True):
    """All about one session."""

    client_id: Name


class ClientShown(WireMessage, frozen=True):
    """`client` is None if there is no such session. Of each subscription its topic filter and QoS, up to 1,000."""

    client: ClientInfo | None
    subscriptions: Annotated[list[tuple[Name, Annotated[int, Meta(ge=0, le=2)]]], Items]
    has_will: bool
    acked: Count


class DisconnectClient(WireMessage, frozen=True):
    """End a client's connection. `by`: who says so, for the audit log."""

    client_id: Name
    reason: Line
    by: Line


class EndSession(WireMessage, frozen=True):
    """End a session, and its connection, if it has one."""

    client_id: Name
    by: Line


class AssignSession(WireMessage, frozen=True):
    """Give a session to a user; a connection of another one ends."""

    client_id: Name
    user: Name
    by: Line


class AddBan(WireMessage, frozen=True):
    """Ban, for `for_s` seconds from now by the store's clock (0: until it is lifted). It replaces an older one."""

    kind: BanKind
    value: BanValue
    for_s: Annotated[int, Meta(ge=0, le=10**10)]
    reason: Line
    by: Line


class LiftBan(WireMessage, frozen=True):
    """End a ban."""

    kind: BanKind
    value: BanValue
    by: Line


class OperatorDone(WireMessage, frozen=True):
    """`found`: there was such a session or ban, and it is done; as safe as the flush policy promises."""

    found: bool


class ListBans(WireMessage, frozen=True):
    """Bans in force, oldest first; `after`: how many of them to leave out."""

    after: Count
    limit: Positive


class BansListed(WireMessage, frozen=True):
    """`next`: what to ask for `after`; None: that was all."""

    bans: Annotated[list[BanInfo], Items]
    next: Count | None


Sample = tuple[Name, dict[Name, Name], float]
"""Of a metric as in Prometheus: name, labels, value."""


class ShowServer(WireMessage, frozen=True):
    """The server, and its figures after the first `after`: 0, or `next` of the last answer."""

    after: Count


class ServerShown(WireMessage, frozen=True):
    """`started_ms`: Unix time. `settings` in force as a JSON object by their paths, secrets as `***` (in the first
    answer; else empty). `health`: what to look at; `unready`: why no clients should come; both empty if all is well.
    `figures` of this process, those of /metrics. `next`: what to ask for `after`; None: that was all."""

    version: Name
    started_ms: Count
    settings: str
    health: str
    unready: str
    figures: Annotated[list[Sample], Items]
    next: Count | None


class TopicReaders(WireMessage, frozen=True):
    """Sessions in the log and groups whose filters match a topic. `after`: 0, or `next` of the last answer to this
    connection."""

    topic: TopicFilter
    after: Count


class TopicReader(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A subscription of a session."""

    client_id: Name
    topic_filter: Name
    qos: Annotated[int, Meta(ge=0, le=2)]
    online: bool


class TopicReadersFound(WireMessage, frozen=True):
    """Readers, in no order, at most 100 filters of each. `groups` as (name, topic_filter): all in the first answer.

    `next`: what to ask for `after`; None: that was all."""

    sessions: Annotated[list[TopicReader], Items]
    groups: Annotated[list[tuple[Name, Name]], Items]
    next: Count | None


class MessageReceivers(WireMessage, frozen=True):
    """Ask which sessions in the log and which groups have the message at a log_offset, as their positions say.

    `after`: 0, or `next` of the last answer to this connection.
    """

    log_offset: LogOffset
    after: Count


class TracedMessage(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A message whose receivers are asked for. `queue_offset` in its topic's queue; `stored_ms`: Unix time.

    `client_id`: the MQTT client that published it; empty: the record names none. `user`: for whom it counts against
    quotas; empty: the record does not say.
    """

    topic: Name
    queue_offset: Count
    stored_ms: Count
    qos: Annotated[int, Meta(ge=0, le=2)]
    client_id: Name
    user: Name


class SessionReceiver(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A session whose subscriptions match: what its position says, and the subscription that decides."""

    client_id: Name
    topic_filter: Name
    qos: Annotated[int, Meta(ge=0, le=2)]
    state: ReceiverState
    online: bool


class GroupReceiver(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A group whose filter matches. `deliveries` so far and `due_ms` (Unix time of the next; 0: not known) of a message
    that it holds, `consumer` that has it; `letter`: log_offset of its dead letter, None: there is none, or none yet.
    """

    group: Name
    topic_filter: Name
    state: ReceiverState
    paused: bool
    deliveries: Count
    due_ms: Count
    consumer: Name
    letter: LogOffset | None


class ReceiversFound(WireMessage, frozen=True):
    """Receivers, groups first, sessions in no order. `message`: in the first answer. `next`: what to ask for `after`;
    None: that was all."""

    message: TracedMessage | None
    groups: Annotated[list[GroupReceiver], Items]
    sessions: Annotated[list[SessionReceiver], Items]
    next: Count | None


class DeadLetters(WireMessage, frozen=True):
    """Dead letters of a group that are not settled, oldest first: up to `limit` from queue_offset `after` on."""

    group: Annotated[str, Meta(min_length=1, max_length=255)]
    after: Count
    limit: Annotated[int, Meta(ge=1, le=1_000)]


class DeadLettersFound(WireMessage, frozen=True):
    """Dead letters: queue_offset and record in log format of each; empty if it is larger than an answer.

    `next`: what to ask for `after`; None: that was all. `end`: where the queue of dead letters ended when it was asked
    (None: an older store does not say). `large`: of each whose record is empty, (queue_offset, log_offset, bytes).
    """

    letters: Annotated[list[tuple[Count, bytes]], Items]
    next: Count | None
    end: Count | None = None
    large: Annotated[tuple[tuple[Count, Count, Count], ...], Items] = ()


class SettleDeadLetter(WireMessage, frozen=True):
    """Publish the message of a dead letter `again` to its first topic, or drop it; it is settled then.

    `queue_offset` and `log_offset`: as in DeadLettersFound and its record. An OperatorDone that is not `found`: it was
    settled before, or is not kept any more.
    """

    group: Annotated[str, Meta(min_length=1, max_length=255)]
    queue_offset: Count
    log_offset: Count
    again: bool
    by: Line


class ClientDetails(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A gateway's description of a connected client.

    `version` of MQTT: 4 is 3.1.1, 5 is 5.0. `keep_alive_s`: 0: none. `durable`: its session outlives the connection.
    `opened_ms`: Unix time. `in_flight` messages of QoS 1 and 2, at most `window`; `backlog` messages wait to be sent
    before any of its queues; `lag`: entries of its queues that it has not been sent; `unread_bytes`: sent since it
    stopped to read. `subscriptions` as (topic_filter, QoS), shared ones with nil, up to 1,000 of each, whether they are
    in the log or not.
    """

    version: Count
    keep_alive_s: Count
    durable: bool
    tls: bool
    opened_ms: Count
    in_flight: Count
    window: Count
    backlog: Count
    lag: Count
    unread_bytes: Count
    subscriptions: Annotated[list[tuple[Name, Annotated[int, Meta(ge=0, le=2)] | None]], Items]


class DescribeClient(WireMessage, frozen=True):
    """Ask the gateway of a connected client for its description."""

    client_id: Name


class ClientDescribed(WireMessage, frozen=True):
    """A client's description; None: it is not connected, or its gateway is too old or silent for a second."""

    details: ClientDetails | None


class Describe(WireMessage, frozen=True):
    """To the gateway that has the client. `number` is that of the question."""

    number: Count
    client_id: Name


class Described(WireMessage, frozen=True):
    """The answer; None: the gateway does not have the client."""

    number: Count
    details: ClientDetails | None


MOST_SAMPLES = 2_000
"""Of one report of a gateway."""
FigureName = Annotated[str, Meta(max_length=255)]
GatewaySample = tuple[
    FigureName, Annotated[dict[FigureName, FigureName], Meta(max_length=2)], Annotated[float, Meta(ge=0, le=2**53)]
]
"""As Sample. What is no count, time or size is refused with the connection: it would spoil the sums of all gateways."""


class GatewayReport(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A gateway's report about itself. `started_ms`: Unix time; `unready`: why no client should come (empty: may).

    `figures`: those of its /metrics after the first `after` that was asked for. `next`: what to ask for `after`; None:
    that was all.
    """

    version: FigureName
    started_ms: Count
    unready: Line
    figures: Annotated[list[GatewaySample], Meta(max_length=MOST_SAMPLES)]
    next: Count | None


class ListGateways(WireMessage, frozen=True):
    """Gateways that are processes of their own."""


class GatewaysListed(WireMessage, frozen=True):
    """The names of gateways, up to 1,000, also of those without a connection whose lease has not ended."""

    gateways: Annotated[list[Name], Items]


class ShowGateway(WireMessage, frozen=True):
    """A gateway, and its figures after the first `after`: 0, or `next` of the last answer."""

    gateway: Name
    after: Count


class GatewayShown(WireMessage, frozen=True):
    """`report` None: the gateway is away, too old, or did not answer within a second."""

    report: GatewayReport | None


class TellFigures(WireMessage, frozen=True):
    """To a gateway: what an operator asks of it. `number` is that of the question."""

    number: Count
    after: Count


class FiguresTold(WireMessage, frozen=True):
    """The answer."""

    number: Count
    report: GatewayReport


class ListLogReaders(WireMessage, frozen=True):
    """List the readers of the log."""


class LogReaderInfo(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """`holds`: retention waits for it, as the fields after that say (HoldLog). `advanced_ms`: Unix time, when it moved
    last. `lost_bytes`: dropped before it had read them.
    """

    name: Name
    log_offset: Count
    behind_bytes: Count
    holds: bool = False
    most_behind_bytes: Count = 0
    when_behind: WhenBehind = "drop"
    advanced_ms: Count = 0
    lost_bytes: Count = 0


class LogReadersListed(WireMessage, frozen=True):
    """All of them, by name; at most 200."""

    readers: Annotated[list[LogReaderInfo], Items]


class ForgetLogReader(WireMessage, frozen=True):
    """Retention no longer waits for a reader. An OperatorDone answers. `by`: who says so, for the audit log."""

    reader: Name
    by: Line
