"""Messages between a store and its peers: the bodies of frames, as msgpack arrays. docs/formats.md lists them."""

from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta

from store.wire import copy_messages as of_copy
from store.wire import group_messages as of_group
from store.wire import log_messages as of_log
from store.wire import operator_messages as of_operator
from store.wire import pace_messages as of_pace
from store.wire import quota_messages as of_quota
from store.wire import rights_messages as of_rights
from store.wire import tier_messages as of_tier
from store.wire.base import ITEMS_PER_FRAME as ITEMS_PER_FRAME
from store.wire.base import MOST_ITEMS as MOST_ITEMS
from store.wire.base import MOST_NAME_CHARACTERS as MOST_NAME_CHARACTERS
from store.wire.base import Count, Items, LogOffset, Name, Positive, QueueOffset, Ref, TopicFilter
from store.wire.base import WireMessage as WireMessage
from store.wire.client_messages import Find as Find
from store.wire.client_messages import Found as Found
from store.wire.client_messages import Get as Get
from store.wire.client_messages import Got as Got
from store.wire.client_messages import Publish as Publish
from store.wire.client_messages import Published as Published
from store.wire.client_messages import Scan as Scan
from store.wire.client_messages import Scanned as Scanned
from store.wire.client_messages import Seek as Seek
from store.wire.client_messages import Sought as Sought
from store.wire.client_messages import Wait as Wait
from store.wire.delayed_messages import CancelDelayed as CancelDelayed
from store.wire.delayed_messages import DelayedCancelled as DelayedCancelled
from store.wire.delayed_messages import DelayedFound as DelayedFound
from store.wire.delayed_messages import GetDelayed as GetDelayed
from store.wire.delayed_messages import ListDelayed as ListDelayed
from store.wire.follow_messages import Follow as Follow
from store.wire.follow_messages import Following as Following
from store.wire.follow_messages import FollowingPast as FollowingPast
from store.wire.follow_messages import Grew as Grew
from store.wire.follow_messages import GrewNamed as GrewNamed
from store.wire.follow_messages import QueueInfo as QueueInfo
from store.wire.follow_messages import Unfollow as Unfollow
from store.wire.operator_messages import BansTold as BansTold
from store.wire.operator_messages import Disconnect as Disconnect
from store.wire.session_messages import Claim as Claim
from store.wire.session_messages import Claimed as Claimed
from store.wire.session_messages import ClaimRefused as ClaimRefused
from store.wire.session_messages import Holds as Holds
from store.wire.session_messages import Judge as Judge
from store.wire.session_messages import Judged as Judged
from store.wire.session_messages import Release as Release
from store.wire.session_messages import TakenOver as TakenOver


class Role(StrEnum):
    """The kind of peer at one end of a connection."""

    STORE = "store"
    GATEWAY = "gateway"
    CLIENT = "client"
    OPERATOR = "operator"


class RefusedReason(StrEnum):
    """The reason why a peer is not let in."""

    NOT_PENSTOCK = "not_penstock"
    BAD_HELLO = "bad_hello"
    VERSION = "version"
    ROLE = "role"
    TOKEN = "token"
    BUSY = "busy"
    CERTIFICATE = "certificate"
    USER = "user"
    LIMITED = "limited"  # too many failed logins; Refused.retry_s says for how long
    BANNED = "banned"
    NOT_LEADER = "not_leader"  # another store of the cluster is, or none at the moment; see Refused.leader


class FailureCode(StrEnum):
    """The reason why a request failed."""

    STORE_FULL = "store_full"
    RECORD_TOO_LARGE = "record_too_large"
    UNAVAILABLE = "unavailable"
    BAD_REQUEST = "bad_request"
    NOT_ALLOWED = "not_allowed"
    NOT_PERMITTED = "not_permitted"
    NO_SUCH_POSITION = "no_such_position"
    FENCED = "fenced"


# --- the handshake: an older version may find fields at the end that it does not know, and skips them


class Hello(WireMessage, frozen=True, forbid_unknown_fields=False):
    """The first frame, after the magic: the protocol versions it speaks and who it is.

    `name` is that of one process, and no other ever has it: under it a store remembers which Appends it has. `user` and
    `password` (or a JSON Web Token in its place) say who a client is, to a store that judges what users do.
    `namespace`: the client's; empty: its user's or its token's, else the default one, *: all, by the log's names.
    `on_behalf_of`: the IP address of the browser for which a console asks; failed logins and bans are then that
    address's if a token shows that the peer could be an operator or a gateway.
    """

    versions: Annotated[list[Positive], Meta(min_length=1, max_length=64)]
    role: Annotated[str, Meta(max_length=64)]
    name: Annotated[str, Meta(max_length=256)]
    token: Annotated[str, Meta(max_length=4096)] = ""
    user: Annotated[str, Meta(max_length=1024)] = ""
    password: Annotated[str, Meta(max_length=16384)] = ""
    namespace: Annotated[str, Meta(max_length=64)] = ""
    on_behalf_of: Annotated[str, Meta(max_length=64)] = ""
    operator_token: Annotated[str, Meta(max_length=4096)] = ""


class Welcome(WireMessage, frozen=True, forbid_unknown_fields=False):
    """The version to be spoken, and what holds for this connection.

    `epoch` is that in which the store leads its cluster, 0 without one; `credit_bytes` of requests may be unanswered; a
    frame is not longer than `max_frame_bytes`; who has nothing to say for `heartbeat_ms` sends a Ping; messages to the
    topic filters in `live_only` are kept in no queue; the log ends at log_offset `log_end`. All Appends under this name
    up to sequence `appended` are safe. `resumed`: the store still holds the sessions that this name claimed, and
    follows its queues if `store_name` is the same, which no two processes have; if not, others may have them, and
    nothing that was begun before may be sent again. `now_ms` is as in Pong. `address`: IP:PORT by which message ids
    name the store; empty: the one at which the peer reached it. A message may be delayed for `max_delay_s`.
    `namespace`: the client's, by its Hello or its token. `left_by`: LEFT_BY of each delayed message that the client
    publishes; empty: none. `counted`: what has quotas, as bits of store.state.usage.Counted.
    """

    version: Positive
    store_name: Name
    epoch: Count
    credit_bytes: Positive
    max_frame_bytes: Positive
    heartbeat_ms: Positive
    live_only: Annotated[list[TopicFilter], Items]
    log_end: LogOffset
    appended: Count = 0
    resumed: bool = False
    now_ms: Count = 0
    address: Name = ""
    max_delay_s: Count = 0
    namespace: Name = ""
    left_by: Annotated[bytes, Meta(max_length=65_535)] = b""
    counted: Count = 0
    max_changes: Count = 0  # what one Publish of a client may count as; 0: not said
    log_identity: Annotated[bytes, Meta(max_length=64)] = b""  # that of store.files.marks; empty: not said
    user: Name = ""  # whom the store found the client to be, in its namespace; empty: nobody by name

    def __post_init__(self) -> None:
        if self.credit_bytes < self.max_frame_bytes:
            raise ValueError(f"credit_bytes {self.credit_bytes} allows no frame of {self.max_frame_bytes} bytes")


class Refused(WireMessage, frozen=True, forbid_unknown_fields=False):
    """A peer is refused: a RefusedReason (a later version may have more of them) and a line for people."""

    reason: str
    message: str
    retry_s: Count = 0  # after so many seconds it may be let in; 0: not said
    leader: Name = ""  # HOST:PORT of the store that leads, if the reason is NOT_LEADER and it is known


# --- either side


class Failed(WireMessage, frozen=True):
    """The request was not carried out; the connection goes on."""

    code: FailureCode
    message: str


class Ping(WireMessage, frozen=True):
    """Ask whether the peer is still there."""


class Pong(WireMessage, frozen=True):
    """The answer to a Ping. The store's says what time it is by its clock, the one that counts: `now_ms`, Unix time."""

    now_ms: Count = 0


class Goodbye(WireMessage, frozen=True):
    """The last frame of a side that closes, with a line for people."""

    reason: str


# --- writing


class Append(WireMessage, frozen=True):
    """Store the records after it, in one append; their offset, time and checksum are filled in by the store.

    All of them, or none, get into the log; batches must not be among them. `sequence` counts the Appends under this
    name from 1 on, across connections. The store has each only once: one that is sent again is answered, and not
    stored again.
    """

    sequence: Positive


class Appended(WireMessage, frozen=True):
    """The records stand in the log from log_offset `start` to `end` and are as safe as the flush policy promises.

    Both are 0 for an Append that was sent again. Answers to Appends come in the order of the requests.
    """

    start: LogOffset
    end: LogOffset


# --- following queues


class Check(WireMessage, frozen=True):
    """Ask for the ends of queues. Asked now and then, so that a lost event costs latency and nothing more."""

    refs: Annotated[list[Ref], Items]


class Checked(WireMessage, frozen=True):
    """(ref, queue_offset where it ends now) of those that are followed, and the log_offset where the log ends."""

    queues: Annotated[list[tuple[Ref, QueueOffset]], Items]
    log_end: LogOffset


class Safe(WireMessage, frozen=True):
    """Everything before `log_offset` is as safe as the flush policy promises. Said to who follows a queue."""

    log_offset: LogOffset


class Floors(WireMessage, frozen=True):
    """(ref, queue_offset before which the sender needs nothing any more) of live queues."""

    floors: Annotated[list[tuple[Ref, QueueOffset]], Items]


# --- reading


class Read(WireMessage, frozen=True):
    """Records from (ref, queue_offset) on: of each range at most `max_records`, and no more once it has `max_bytes`."""

    ranges: Annotated[list[tuple[Ref, QueueOffset]], Items]
    max_records: Positive
    max_bytes: Positive


class Ranges(WireMessage, frozen=True):
    """(ref, queue_offset of the first record, number of records) of each range; the records follow in this order."""

    ranges: Annotated[list[tuple[Ref, QueueOffset, Count]], Items]


class Pushed(WireMessage, frozen=True):
    """Ranges as in Ranges, not asked for, of queues that were read to their ends; and where the log ends.

    Each goes on where the last one of its queue ended, unless a Grew said otherwise. A queue ends, as far as is told,
    where its range ends. `safe` is as in Safe.
    """

    ranges: Annotated[list[tuple[Ref, QueueOffset, Count]], Items]
    log_end: LogOffset
    safe: LogOffset


class Enough(WireMessage, frozen=True):
    """Push no more of these queues until they have been read to their ends again."""

    refs: Annotated[list[Ref], Items]


class ReadAt(WireMessage, frozen=True):
    """The records at these log_offsets."""

    log_offsets: Annotated[list[LogOffset], Items]


class RecordsAt(WireMessage, frozen=True):
    """For each record: whether it is still kept. The kept ones follow in this order."""

    found: Annotated[list[bool], Items]


class Locate(WireMessage, frozen=True):
    """Find a position in a filter's stored queue: `earliest`, a time (`-1h`, RFC 3339) or a queue_offset in digits."""

    topic_filter: TopicFilter
    where: Name


class Located(WireMessage, frozen=True):
    """The first entry at or after that place."""

    queue_offset: QueueOffset


class Retained(WireMessage, frozen=True):
    """Up to `limit` retained messages whose topics match and sort after `after` ("": from the first)."""

    topic_filter: TopicFilter
    after: Name
    limit: Positive


class RetainedFound(WireMessage, frozen=True):
    """log_offset, QoS and publisher's client_id of each message. `next`: the next request's `after`; None: no more."""

    messages: Annotated[list[tuple[LogOffset, Annotated[int, Meta(ge=0, le=2)], bytes]], Items]
    next: Name | None


# --- delayed messages


# --- the table


class Kind(NamedTuple):
    """A type of frame: its number, its message, who sends it, and whether records may follow. `asked`: it is a request
    with an answer, or the answer, so it bears a request_id; others bear 0. `of_queues`: it begins with a list;
    `of_receipts`: with a number, and a list after it."""

    number: int
    message: type[WireMessage]
    senders: frozenset[Role]
    asked: bool = False
    records: bool = False
    of_queues: bool = False
    of_receipts: bool = False


_STORE = frozenset((Role.STORE,))
_GATEWAY = frozenset((Role.GATEWAY,))
_CLIENT = frozenset((Role.CLIENT,))
_OPERATOR = frozenset((Role.OPERATOR,))
_READERS = frozenset((Role.CLIENT, Role.OPERATOR))
_BOTH = frozenset((Role.GATEWAY, Role.CLIENT))
_PEERS = frozenset((Role.GATEWAY, Role.CLIENT, Role.OPERATOR))
_ALL = frozenset(Role)
_INSIDE = frozenset((Role.STORE, Role.GATEWAY))

KINDS = (
    Kind(1, Hello, _PEERS),
    Kind(2, Welcome, _STORE),
    Kind(3, Refused, _STORE),
    Kind(4, Failed, _STORE, asked=True),
    Kind(5, Ping, _ALL),
    Kind(6, Pong, _ALL),
    Kind(7, Goodbye, _ALL),
    Kind(16, Append, _BOTH, asked=True, records=True),
    Kind(17, Appended, _STORE, asked=True),
    Kind(18, Follow, _BOTH, asked=True),
    Kind(19, Following, _STORE, asked=True),
    Kind(20, Unfollow, _BOTH, of_queues=True),
    Kind(21, Grew, _STORE),
    Kind(22, Safe, _STORE),
    Kind(23, Floors, _BOTH, of_queues=True),
    Kind(24, Read, _BOTH, asked=True, of_queues=True),
    Kind(25, Ranges, _STORE, asked=True, records=True),
    Kind(26, ReadAt, _GATEWAY, asked=True),
    Kind(27, RecordsAt, _STORE, asked=True, records=True),
    Kind(28, Locate, _BOTH, asked=True),
    Kind(29, Located, _STORE, asked=True),
    Kind(30, Retained, _BOTH, asked=True),
    Kind(31, RetainedFound, _STORE, asked=True),
    Kind(32, Claim, _GATEWAY, asked=True),
    Kind(33, Claimed, _STORE, asked=True),
    Kind(34, Release, _GATEWAY),
    Kind(35, TakenOver, _STORE),
    Kind(36, GrewNamed, _STORE),
    Kind(37, Check, _BOTH, asked=True, of_queues=True),
    Kind(38, Checked, _STORE, asked=True),
    Kind(39, Pushed, _STORE, records=True),
    Kind(40, Enough, _BOTH, of_queues=True),
    Kind(41, Holds, _GATEWAY),
    Kind(42, ClaimRefused, _STORE, asked=True),
    Kind(43, Judge, _STORE),
    Kind(44, Judged, _GATEWAY),
    Kind(45, of_quota.TakeMessage, _GATEWAY, asked=True),
    Kind(46, of_quota.TakeSubscriptions, _GATEWAY, asked=True),
    Kind(47, of_quota.Taken, _STORE, asked=True),
    Kind(48, Publish, _CLIENT, asked=True, records=True),
    Kind(49, Published, _STORE, asked=True),
    Kind(50, Scan, _BOTH, asked=True),
    Kind(51, Scanned, _STORE, asked=True, records=True),
    Kind(52, Seek, _BOTH, asked=True),
    Kind(53, Sought, _STORE, asked=True),
    Kind(54, Get, _CLIENT, asked=True),
    Kind(55, Got, _STORE, asked=True, records=True),
    Kind(56, Find, _CLIENT, asked=True),
    Kind(57, Found, _STORE, asked=True, records=True),
    Kind(58, of_quota.LiveSubscriptions, _GATEWAY),
    Kind(59, of_pace.Behind, _GATEWAY),
    Kind(60, of_pace.Slow, _STORE),
    Kind(64, of_group.GroupOpen, _PEERS, asked=True),
    Kind(65, of_group.GroupOpened, _STORE, asked=True),
    Kind(66, of_group.GroupClose, _PEERS),
    Kind(67, of_group.Pop, _BOTH, asked=True),
    Kind(68, of_group.Popped, _STORE, asked=True, records=True),
    Kind(69, of_group.Ack, _BOTH, asked=True, of_receipts=True),
    Kind(70, of_group.ChangeInvisible, _BOTH, asked=True, of_receipts=True),
    Kind(71, of_group.Reject, _BOTH, asked=True, of_receipts=True),
    Kind(72, of_group.Settled, _STORE, asked=True),
    Kind(73, of_group.GroupList, _PEERS, asked=True),
    Kind(74, of_group.GroupsListed, _STORE, asked=True),
    Kind(75, of_group.GroupReset, _PEERS, asked=True),
    Kind(76, of_group.GroupDrop, _PEERS, asked=True),
    Kind(77, of_group.GroupDone, _STORE, asked=True),
    Kind(78, of_group.GroupPause, _PEERS, asked=True),
    Kind(79, of_group.PausedGroups, _PEERS, asked=True),
    Kind(80, ListDelayed, _PEERS, asked=True),
    Kind(81, DelayedFound, _STORE, asked=True),
    Kind(82, CancelDelayed, _PEERS, asked=True),
    Kind(83, DelayedCancelled, _STORE, asked=True),
    Kind(84, of_rights.Rights, _CLIENT, asked=True),
    Kind(85, of_rights.RightsTold, _STORE, asked=True),
    Kind(86, of_rights.Permitted, _CLIENT, asked=True),
    Kind(87, of_rights.PermittedTold, _STORE, asked=True),
    Kind(88, GetDelayed, _CLIENT, asked=True),
    Kind(89, of_rights.ReadableFilters, _CLIENT, asked=True),
    Kind(90, of_rights.ReadableFiltersTold, _STORE, asked=True),
    Kind(91, of_group.GroupWhere, _CLIENT, asked=True),
    Kind(92, of_group.GroupIs, _STORE, asked=True),
    Kind(93, of_group.TellWork, _CLIENT, asked=True),
    Kind(94, of_group.WorkNoted, _STORE, asked=True),
    Kind(95, of_group.ListWork, _READERS, asked=True),
    Kind(96, of_log.Segments, _CLIENT, asked=True),
    Kind(97, of_log.SegmentsFound, _STORE, asked=True),
    Kind(98, of_log.ReadLog, _READERS, asked=True),
    Kind(99, of_log.LogRead, _STORE, asked=True, records=True),
    Kind(100, of_log.SeekLog, _CLIENT, asked=True),
    Kind(101, of_log.QueueOffsets, _READERS, asked=True),
    Kind(102, of_log.QueueOffsetsFound, _STORE, asked=True),
    Kind(103, of_log.ReaderAt, _CLIENT, asked=True),
    Kind(104, of_log.ReaderNoted, _STORE, asked=True),
    Kind(105, of_log.Topics, _READERS, asked=True),
    Kind(106, of_log.TopicsFound, _STORE, asked=True),
    Kind(107, of_log.HoldLog, _READERS, asked=True),
    Kind(108, of_log.LogHeld, _STORE, asked=True),
    Kind(109, of_log.LocateTable, _CLIENT, asked=True),
    Kind(110, of_log.TableLocated, _STORE, asked=True),
    Kind(111, of_group.WorkListed, _STORE, asked=True),
    Kind(112, of_operator.BansTold, _STORE),
    Kind(113, of_operator.Disconnect, _STORE),
    Kind(114, of_operator.BanMade, _GATEWAY),
    Kind(115, of_operator.LoginsEnded, _INSIDE),
    Kind(116, of_operator.ListClients, _OPERATOR, asked=True),
    Kind(117, of_operator.ClientsListed, _STORE, asked=True),
    Kind(118, of_operator.ShowClient, _OPERATOR, asked=True),
    Kind(119, of_operator.ClientShown, _STORE, asked=True),
    Kind(120, of_operator.DisconnectClient, _OPERATOR, asked=True),
    Kind(121, of_operator.EndSession, _OPERATOR, asked=True),
    Kind(122, of_operator.AssignSession, _OPERATOR, asked=True),
    Kind(123, of_operator.AddBan, _OPERATOR, asked=True),
    Kind(124, of_operator.LiftBan, _OPERATOR, asked=True),
    Kind(125, of_operator.OperatorDone, _STORE, asked=True),
    Kind(126, of_operator.ListBans, _OPERATOR, asked=True),
    Kind(127, of_operator.BansListed, _STORE, asked=True),
    Kind(128, of_operator.ShowServer, _OPERATOR, asked=True),
    Kind(129, of_operator.ServerShown, _STORE, asked=True),
    Kind(130, of_operator.TopicReaders, _OPERATOR, asked=True),
    Kind(131, of_operator.TopicReadersFound, _STORE, asked=True),
    Kind(132, of_operator.DeadLetters, _OPERATOR, asked=True),
    Kind(133, of_operator.DeadLettersFound, _STORE, asked=True),
    Kind(134, of_operator.SettleDeadLetter, _OPERATOR, asked=True),
    Kind(135, of_operator.DescribeClient, _OPERATOR, asked=True),
    Kind(136, of_operator.ClientDescribed, _STORE, asked=True),
    Kind(137, of_operator.Describe, _STORE),
    Kind(138, of_operator.Described, _GATEWAY),
    Kind(139, of_operator.ListGateways, _OPERATOR, asked=True),
    Kind(140, of_operator.GatewaysListed, _STORE, asked=True),
    Kind(141, of_operator.ShowGateway, _OPERATOR, asked=True),
    Kind(142, of_operator.GatewayShown, _STORE, asked=True),
    Kind(143, of_operator.TellFigures, _STORE),
    Kind(144, of_operator.FiguresTold, _GATEWAY),
    Kind(145, of_operator.ListLogReaders, _OPERATOR, asked=True),
    Kind(146, of_operator.LogReadersListed, _STORE, asked=True),
    Kind(147, of_operator.ForgetLogReader, _OPERATOR, asked=True),
    Kind(148, of_tier.ServeTier, _OPERATOR, asked=True, records=True),
    Kind(149, of_tier.TierAsked, _STORE, asked=True),
    Kind(150, FollowingPast, _STORE, asked=True),
    Kind(151, of_copy.AskCopy, _OPERATOR, asked=True),
    Kind(152, of_copy.CopyOffered, _STORE, asked=True),
    Kind(153, of_copy.CopySegment, _OPERATOR, asked=True),
    Kind(154, of_copy.CopyCheckpoint, _OPERATOR, asked=True),
    Kind(155, of_copy.CopyPiece, _STORE, asked=True),
    Kind(156, of_operator.MessageReceivers, _OPERATOR, asked=True),
    Kind(157, of_operator.ReceiversFound, _STORE, asked=True),
    Kind(158, of_group.ListTags, _READERS, asked=True),
    Kind(159, of_group.TagsListed, _STORE, asked=True),
)
