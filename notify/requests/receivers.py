"""Who has received a message: sessions and groups, by pages, from what the store knows of their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lightqueue.groups.receivers import group_verdict
from lightqueue.message_store import MessageStore
from lightqueue.reading import replay
from notify.local.hub import Hub
from notify.requests.listings import AT_ONCE, LOOKED_AT, NameSnapshots, NamesPage
from store.errors import StoreError
from store.records.records import Attribute, Record, decode_attributes, read_records
from store.state.group_states import GroupKey
from store.state.receivers import TracedPlace, receiver_state
from store.state.usage import counted_of
from store.topics import matches
from store.wire.base import WireMessage
from store.wire.messages import Failed, FailureCode
from store.wire.operator_messages import (
    GroupReceiver,
    MessageReceivers,
    ReceiversFound,
    SessionReceiver,
    TracedMessage,
)

Reader = str | GroupKey
"""A session by its client identifier, or a group."""


def readers_of_all(hub: Hub) -> list[Reader]:
    """All groups, then all sessions in the log."""
    return [*(each.state.key for each in hub.messages.groups), *hub.messages.sessions.client_ids]


def find_receivers(
    hub: Hub, names: NameSnapshots[Reader], request: MessageReceivers, done: Callable[[WireMessage], None]
) -> Iterator[None] | None:
    """`done` gets the answer. Raises ListingEnded, StoreError."""
    found = replay.get(hub.messages, request.log_offset)
    if found is None:
        done(Failed(FailureCode.NO_SUCH_POSITION, _no_message(hub.messages, request.log_offset)))
        return None
    (record,) = read_records(memoryview(found[0]))
    page = names.page(request.after, LOOKED_AT)
    message = None
    if not request.after:
        message = _traced(record, found[1])
        page.takes(message.topic, message.client_id, message.user)
    return _look(hub, page, record, message, done)


def _no_message(messages: MessageStore, log_offset: int) -> str:
    first = messages.log.first
    if log_offset < first:
        return (
            f"log_offset {log_offset}: retention has dropped this message; the log begins at {first}. Positions say "
            "nothing of it any more"
        )
    return (
        f"no message begins at log_offset {log_offset}; one that is delayed, or that the store delivers live only, "
        "has no position"
    )


def _traced(record: Record, queue_offset: int) -> TracedMessage:
    counted = decode_attributes(record.attributes).get(Attribute.COUNTED, b"")
    user = counted_of(counted)[1] if counted else ""
    client_id = record.client_id.decode(errors="replace")
    return TracedMessage(record.topic.decode(), queue_offset, record.timestamp_ms, record.qos, client_id, user)


def _look(
    hub: Hub,
    page: NamesPage[Reader],
    record: Record,
    message: TracedMessage | None,
    done: Callable[[WireMessage], None],
) -> Iterator[None]:
    groups: list[GroupReceiver] = []
    sessions: list[SessionReceiver] = []
    place = TracedPlace(record.log_offset, record.topic.decode(), record.client_id.decode(errors="replace"))
    try:
        for number, reader in enumerate(page):
            if isinstance(reader, tuple):
                yield from _look_at_group(hub, page, reader, record, groups)
            else:
                yield from _look_at_session(hub, page, reader, place, sessions)
            if number % AT_ONCE == 0:
                yield
    except StoreError as error:
        done(Failed(FailureCode.UNAVAILABLE, str(error)))
        return
    done(ReceiversFound(message, groups, sessions, page.after))
    yield from page.forget()


def _look_at_group(
    hub: Hub, page: NamesPage[Reader], key: GroupKey, record: Record, found: list[GroupReceiver]
) -> Iterator[None]:
    queue = hub.messages.groups.get(key)
    if queue is None or not matches(key[1], record.topic.decode()):
        return
    for verdict in group_verdict(hub.messages.queues, queue, record):
        if verdict is None:
            yield
        elif page.takes(*key, verdict.consumer):
            state, deliveries, due_ms, consumer, letter = verdict
            found.append(GroupReceiver(*key, state, queue.state.paused, deliveries, max(due_ms, 0), consumer, letter))
    yield


def _look_at_session(
    hub: Hub, page: NamesPage[Reader], client_id: str, place: TracedPlace, found: list[SessionReceiver]
) -> Iterator[None]:
    session = hub.messages.sessions.get(client_id)
    if session is None:
        return
    online = hub.claims.holder(client_id) is not None
    for step in receiver_state(session, place, online):
        if step is None:
            yield
        elif page.takes(client_id, step[0].topic_filter):
            found.append(SessionReceiver(client_id, step[0].topic_filter, step[0].qos, step[1], online))
