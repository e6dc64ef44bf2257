"""The permissions that a client's frame needs, and the part of an answer that the client may see."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from lightqueue.message_store import MessageStore
from lightqueue.reading import replay
from lightqueue.upkeep.dispatching import record_of
from notify.requests.users import ConnectionPermits, Permission
from store.errors import StoreError
from store.namespaces import DEFAULT, Namespace, is_reserved
from store.records._records import flagged_in, topic_runs
from store.records.records import RecordFlag
from store.state.delayed import DelayedMessage
from store.wire import group_messages as of_group
from store.wire import log_messages as of_log
from store.wire import messages as wire
from store.wire import rights_messages as of_rights
from store.wire.base import WireMessage
from store.wire.frames import Frame

PUBLISH, RETAIN, SUBSCRIBE, REPLAY = "publish", "retain", "subscribe", "replay"
READ_LOG = Permission("read_log", "#")
"""A permission of its own: the log has the messages of all namespaces, which no `#` covers."""
ADMIN = Permission("admin", "#")
"""To see and touch what other clients have. No `#` and no default covers it either."""
HOLD_LOG = Permission("hold_log", "#")
"""To have retention wait, which fills the disk. A reader of the log needs it besides."""
OF_THE_STORE = (READ_LOG.action, HOLD_LOG.action, ADMIN.action)
"""Actions on the store as a whole: no default and no namespace allows them."""
WHOLE_LOG = [
    READ_LOG,
    *(Permission(action, topic) for topic in ("#", "$dead/#") for action in (SUBSCRIBE, REPLAY)),
]
"""A reader of the log itself reads everything in it."""
MOST_SHOWN = 64  # characters of a user's name in an error
FROM_NOW = {"now", "latest"}
_TOPIC_LENGTH = struct.Struct("<H")
"""In a record's header, see docs/formats.md."""


def wanted_by(
    frame: Frame, messages: MessageStore, names: Namespace = DEFAULT, found: bytes = b""
) -> Iterable[Permission]:
    """The permissions that a client needs for a frame of RIGHTS, by the names that it knows; empty if it needs none.

    There may be thousands: each is made when it is looked at. `found`: the message of a Get that is not in the log.
    """
    wanted = of_message(found) if found else RIGHTS[type(frame.message)](frame.message, frame, messages)
    if names.name and isinstance(frame.message, of_log.QueueOffsets):
        # These are of its own namespace, as all that it may ask for.
        wanted = (Permission(SUBSCRIBE, topic) for topic in dict.fromkeys(frame.message.topics))
    return (plain_permission(each, names) for each in wanted) if names.name else wanted


def unstated(message: WireMessage) -> str:
    """The reason why no client may send a message of this kind; empty: RIGHTS has the permissions that it needs."""
    kind = type(message)
    return "" if kind in RIGHTS else f"{kind.__name__}: this store states no right for it, so nobody has it"


def why_not(refused: Permission, user: str) -> str:
    """The text for a refused client: action and topic, and a remedy after a colon."""
    if refused == HOLD_LOG:
        return "hold_log #: it keeps retention from freeing the disk; allow it by a rule of the permissions file"
    if refused != READ_LOG:
        return f"{refused.action} {refused.topic}"
    return (
        "read_log #: it shows the log of all namespaces; allow it by a rule of the permissions file: "
        f'users = [{json.dumps(user[:MOST_SHOWN])}], allow = ["subscribe", "replay", "read_log"], '
        'topics = ["#", "$dead/#"]'
    )


def plain_permission(wanted: Permission, names: Namespace) -> Permission:
    """A permission by the names that the client knows."""
    group = names.plain_group(wanted.group) if wanted.group is not None else None
    return Permission(wanted.action, names.plain_topic(wanted.topic), group)


def narrowed(frame: Frame, names: Namespace = DEFAULT) -> Frame:
    """Narrow a search without a topic filter to `#`: permission for `#` is not permission for `$dead/...`."""
    message = frame.message
    if isinstance(message, wire.Find) and not message.topic_filter:
        named = msgspec.structs.replace(message, topic_filter=names.topic("#"))
        return msgspec.structs.replace(frame, message=named)
    return frame


def show(
    answer: WireMessage, permits: ConnectionPermits, names: Namespace, then: Callable[[WireMessage], None]
) -> Iterator[None]:
    """`then` gets a list of delayed messages without those that the client may not see; a step judges one."""
    if isinstance(answer, wire.DelayedFound):
        found = []
        for each in answer.messages:
            if permits.sees(Permission(SUBSCRIBE, names.plain_topic(each[2]))):
                found.append(each)
            yield
        answer = msgspec.structs.replace(answer, messages=found)
    then(answer)


def _published(_: Any, frame: Frame, __: MessageStore) -> Iterator[Permission]:
    """A permission to publish for each topic of the records, once each."""
    records = frame.records
    for topic in dict.fromkeys(run[0] for run in topic_runs(records)):
        yield Permission(PUBLISH, topic.decode(errors="replace"))
    retained: dict[bytes, None] = {}
    for at in flagged_in(records, RecordFlag.RETAIN):
        (topic_bytes,) = _TOPIC_LENGTH.unpack_from(records, at + 26)
        retained[bytes(records[at + 40 : at + 40 + topic_bytes])] = None
    for topic in retained:
        yield Permission(RETAIN, topic.decode(errors="replace"))


def _live(message: Any, _: Frame, __: MessageStore) -> list[Permission]:
    return [Permission(SUBSCRIBE, message.topic_filter)]


def _followed(message: wire.Follow, _: Frame, __: MessageStore) -> list[Permission]:
    wanted = [Permission(SUBSCRIBE, message.topic_filter)]
    return wanted if message.start < 0 else [*wanted, Permission(REPLAY, message.topic_filter)]


def _read(message: Any, _: Frame, __: MessageStore) -> list[Permission]:
    return [Permission(SUBSCRIBE, message.topic_filter), Permission(REPLAY, message.topic_filter)]


def _got(message: wire.Get, _: Frame, messages: MessageStore) -> list[Permission]:
    try:
        found = replay.get(messages, message.log_offset)
    except StoreError:
        found = None
    return [] if found is None else of_message(found[0])


def of_message(record: bytes) -> list[Permission]:
    """The permissions that it takes to read one message again."""
    (topic_bytes,) = _TOPIC_LENGTH.unpack_from(record, 26)
    topic = record[40 : 40 + topic_bytes].decode(errors="replace")
    return [Permission(SUBSCRIBE, topic), Permission(REPLAY, topic)]


def _pending(message: wire.GetDelayed, _: Frame, messages: MessageStore) -> list[Permission]:
    topic = messages.dispatching.topic_of(message.due_ms, message.log_offset)
    return [Permission(SUBSCRIBE, topic), Permission(REPLAY, topic)] if topic else []


def _topics(message: of_log.QueueOffsets, _: Frame, __: MessageStore) -> Iterator[Permission]:
    for topic in dict.fromkeys(message.topics):
        yield READ_LOG if is_reserved(topic) else Permission(SUBSCRIBE, topic)


def _whole_log(_: Any, __: Frame, ___: MessageStore) -> list[Permission]:
    return WHOLE_LOG


def _held(_: Any, __: Frame, ___: MessageStore) -> list[Permission]:
    return [HOLD_LOG, *WHOLE_LOG]


def _joined(message: of_group.GroupOpen, _: Frame, messages: MessageStore) -> list[Permission]:
    wanted = [Permission(SUBSCRIBE, message.topic_filter, message.group)]
    is_new = messages.groups.get((message.group, message.topic_filter)) is None
    if is_new and message.start not in FROM_NOW:
        wanted.append(Permission(REPLAY, message.topic_filter))
    return wanted


def _moved(message: of_group.GroupReset, _: Frame, __: MessageStore) -> list[Permission]:
    return [
        Permission(SUBSCRIBE, message.topic_filter, message.group),
        Permission(REPLAY, message.topic_filter),
    ]


def _dropped(message: of_group.GroupDrop | of_group.GroupPause, _: Frame, __: MessageStore) -> list[Permission]:
    return [Permission(SUBSCRIBE, message.topic_filter, message.group)]


def _taken_back(message: wire.CancelDelayed, _: Frame, messages: MessageStore) -> list[Permission]:
    place = messages.delayed.place(message.due_ms, message.log_offset)
    if place is None:
        return []
    record = record_of(messages.log, DelayedMessage(message.due_ms, message.log_offset, place))
    return [Permission(PUBLISH, record.topic.decode())] if record is not None else []


def _none(_: Any, __: Frame, ___: MessageStore) -> list[Permission]:
    return []


RIGHTS: dict[type[WireMessage], Callable[[Any, Frame, MessageStore], Iterable[Permission]]] = {
    wire.Append: _published,
    wire.Publish: _published,
    wire.Follow: _followed,
    wire.Retained: _live,
    wire.Locate: _read,
    wire.Scan: _read,
    wire.Seek: _read,
    wire.Find: _read,
    wire.Get: _got,
    of_log.Topics: _live,
    of_log.QueueOffsets: _topics,
    of_log.Segments: _whole_log,
    of_log.ReadLog: _whole_log,
    of_log.SeekLog: _whole_log,
    of_log.ReaderAt: _whole_log,
    of_log.LocateTable: _whole_log,
    of_log.HoldLog: _held,
    of_group.GroupOpen: _joined,
    of_group.GroupReset: _moved,
    of_group.GroupDrop: _dropped,
    of_group.GroupPause: _dropped,
    wire.CancelDelayed: _taken_back,
    wire.GetDelayed: _pending,
    # about the connection itself
    **dict.fromkeys((wire.Hello, wire.Ping, wire.Pong, wire.Goodbye), _none),
    # by the refs of queues and consumers that Follow and GroupOpen gave to this peer
    **dict.fromkeys((wire.Unfollow, wire.Floors, wire.Read, wire.Check, wire.Enough), _none),
    **dict.fromkeys(
        (
            *(of_group.GroupClose, of_group.Pop, of_group.Ack, of_group.ChangeInvisible, of_group.Reject),
            *(of_group.GroupWhere, of_group.TellWork),
        ),
        _none,
    ),
    # their answers leave out what the client may not see: show(), and _sees() of group_requests
    **dict.fromkeys((of_group.GroupList, of_group.PausedGroups, of_group.ListWork, of_group.ListTags), _none),
    wire.ListDelayed: _none,
    # about what the user itself may do
    **dict.fromkeys((of_rights.Rights, of_rights.Permitted, of_rights.ReadableFilters), _none),
}
"""What each kind of frame that a client may send needs. A kind that is not here is refused."""
