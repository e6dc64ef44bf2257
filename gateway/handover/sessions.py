"""A session's state out of its objects, and into those of another process. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.delivery.deliverer import Deliverer
from gateway.delivery.retained_messages import RetainedMessages
from gateway.delivery.shared_subscriptions import SharedSubscriptions
from gateway.handover.state import (
    HandedBacklog,
    HandedDelivery,
    HandedList,
    HandedMessage,
    HandedReader,
    HandedReplay,
    HandedSession,
    HandedShare,
)
from gateway.mqtt._dealt import DealtMessage, DealtShare
from gateway.mqtt._mqtt import Reader
from gateway.sessions.connection import Connection
from gateway.sessions.group_subscription import GroupSubscription
from gateway.sessions.session import (
    LIVE_BESIDE,
    NONE,
    NOTHING,
    BacklogItem,
    HeldMessage,
    HistoryReplay,
    MorePages,
    RetainedBatch,
    Session,
)
from lightqueue.queues._queues import Queue
from notify.api import GroupConsumer, LeasedMessages

RefOf = Callable[[Queue], int]
"""The store's reference of a queue that is followed. Raises KeyError."""
PlaceOf = Callable[[GroupConsumer], int]
"""The place of a consumer of a group among those of this gateway."""
QueueOf = Callable[[int], Queue]
SeatOf = Callable[[int, Callable[[LeasedMessages], None]], GroupConsumer]
"""The consumer at a place; the function takes what the group hands it."""


# --- out of the objects


def handed_session(session: Session, ref_of: RefOf, place_of: PlaceOf) -> HandedSession:
    """A session that is connected, and for which nothing is under way. Raises KeyError for a queue without a ref."""
    inflight = session.inflight
    held = {packet_id: item for packet_id, item in inflight.held.items() if not item.is_shared}
    deliveries = {packet_id: item for packet_id, item in inflight.held.items() if item.is_shared}
    return HandedSession(
        client_id=session.client_id,
        expiry_s=session.expiry_s,
        logged=session.logged,
        frontier=session.frontier,
        acked=session.acked,
        window=inflight.window,
        blocked=bool(inflight.blocked),
        inflight=inflight.dump(),
        held=[handed_message(packet_id, item) for packet_id, item in held.items()],
        readers=[handed_reader(reader, ref_of) for reader in session.readers.values()],
        shares=[_handed_share(share, deliveries, place_of) for share in session.shares.values()],
        given_back=dict(session.given_back),
        received=sorted(session.received),
        skip=sorted(session.skip),
        will=session.will,
        replays=[handed_replay(replay) for replay in session.replays],
        backlog=[_handed_backlog(item) for item in session.backlog],
    )


def handed_message(packet_id: int, message: HeldMessage) -> HandedMessage:
    return HandedMessage(
        packet_id=packet_id,
        log_offset=message.log_offset,
        qos=message.qos,
        retain=message.retain,
        subscription_ids=message.subscription_ids,
        released=message.released,
        owed=message.owed,
        lost=message.lost,
    )


def handed_reader(reader: Reader, ref_of: RefOf) -> HandedReader:
    return HandedReader(
        ref=ref_of(reader.queue),
        topic_filter=reader.topic_filter,
        qos=reader.qos,
        position=reader.position,
        reached=reader.reached,
        since=reader.since,
        skip_qos0_before=reader.skip_qos0_before,
        no_local=bool(reader.no_local),
        retain_as_published=bool(reader.retain_as_published),
        subscription_id=reader.subscription_id,
        only_live=bool(reader.only_live),
    )


def handed_replay(replay: HistoryReplay) -> HandedReplay:
    """A page that is partly sent is read again from where that has come to; one that was read ahead is read again."""
    goes_on = replay.next
    if replay.page is not None:
        reader, records = replay.page
        if reader.position < records.next:
            goes_on = records.log_offset(reader.position - records.first)
    return HandedReplay(
        subscription=replay.subscription,
        next=goes_on,
        stop=replay.stop,
        start=replay.start,
        reached=replay.reached,
        resumes=replay.resumes,
        lost=replay.lost,
    )


def _handed_share(
    share: GroupSubscription[Session], deliveries: dict[int, DealtMessage], place_of: PlaceOf
) -> HandedShare:
    assert share.seat is not None
    return HandedShare(
        subscription=share.subscription,
        consumer=place_of(share.seat),
        sent_until=share.sent_until,
        is_fresh=share.is_fresh,
        is_leaving=share.is_leaving,
        deliveries=[_handed_delivery(packet_id, each) for packet_id, each in deliveries.items() if each.share is share],
    )


def _handed_delivery(packet_id: int, delivery: DealtMessage) -> HandedDelivery:
    return HandedDelivery(
        packet_id=packet_id,
        serial=delivery.serial,
        queue_offset=delivery.queue_offset,
        log_offset=delivery.log_offset,
        qos=delivery.qos,
        released=bool(delivery.released),
        is_settled=bool(delivery.is_settled),
    )


def _handed_backlog(item: BacklogItem) -> HandedBacklog:
    if isinstance(item, int):
        return HandedBacklog(packet_id=item)
    if isinstance(item, HeldMessage):
        return HandedBacklog(message=handed_message(0, item))
    more = item.more if item.then is not None else None
    listed = HandedList(
        log_offsets=item.log_offsets[item.sent :],
        qos=item.qos,
        subscription_ids=item.subscription_ids,
        topic_filter=item.topic_filter,
        after=more.after if more is not None else None,
        end=more.end if more is not None else 0,
        subscription=more.subscription if more is not None else None,
    )
    return HandedBacklog(listed=listed)


def has_under_way(session: Session) -> bool:
    """Whether something is under way for a session that cannot travel: an answer that its client waits for, a page of
    retained messages that is being found, a group that is being joined, an append that is not safe."""
    listing = sum(isinstance(item, RetainedBatch) and item.then is not None for item in session.backlog)
    joining = any(share.seat is None or share.pending or share.settling for share in session.shares.values())
    link = session.connection
    waits = link.waiting or not session.reading or link.unsafe_acks or link.is_owing()
    return bool(waits or joining or session.untold or session.listings != listing)


# --- into the objects


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The gateway's objects to which a session that was taken over is added."""

    deliverer: Deliverer
    shared: SharedSubscriptions
    retained: RetainedMessages
    queue_of: QueueOf
    seat_of: SeatOf


def taken_session(handed: HandedSession, connection: Connection, parts: SessionParts) -> Session:
    """The session, which its connection has then. Nothing is sent by this. Raises KeyError for an unknown queue."""
    session = Session(handed.client_id, handed.acked)
    session.expiry_s, session.logged, session.will = handed.expiry_s, handed.logged, handed.will
    session.frontier = handed.frontier
    session.received = set(handed.received) or NOTHING
    session.skip = frozenset(handed.skip) if handed.skip else NOTHING
    session.given_back = handed.given_back or NONE
    session.attach(connection, handed.window)
    session.inflight.load(handed.inflight, 0)
    session.inflight.blocked = handed.blocked
    for message in handed.held:
        session.inflight.restore(message.packet_id, _message(message))
    for place in handed.readers:
        reader = _reader(place, session, parts.queue_of)
        session.put_reader(place.topic_filter + (LIVE_BESIDE if place.only_live else ""), reader)
        parts.deliverer.add(reader)
    for share in handed.shares:
        _take_share(share, session, parts)
    session.replays = [_replay(each) for each in handed.replays] or ()
    if handed.backlog:
        session.backlog = deque(_backlog_item(each, session, parts.retained) for each in handed.backlog)
        session.listings = sum(isinstance(item, RetainedBatch) and item.then is not None for item in session.backlog)
    session.reading = True
    connection.behind = session.has_something_first
    return session


def _message(handed: HandedMessage) -> HeldMessage:
    return HeldMessage(
        handed.log_offset,
        handed.qos,
        handed.retain,
        tuple(handed.subscription_ids),
        released=handed.released,
        owed=handed.owed,
        lost=handed.lost,
    )


def _reader(handed: HandedReader, session: Session, queue_of: QueueOf) -> Reader:
    reader = Reader(queue_of(handed.ref), session, handed.topic_filter)
    reader.position, reader.reached, reader.since = handed.position, handed.reached, handed.since
    reader.skip_qos0_before = handed.skip_qos0_before
    reader.qos, reader.no_local = handed.qos, handed.no_local
    reader.retain_as_published = handed.retain_as_published
    reader.subscription_id, reader.only_live = handed.subscription_id, handed.only_live
    reader.link = session.link
    return reader


def _take_share(handed: HandedShare, session: Session, parts: SessionParts) -> None:
    share = parts.shared.take_over(session, handed.subscription)
    share.sent_until, share.is_fresh, share.is_leaving = handed.sent_until, handed.is_fresh, handed.is_leaving
    for each in handed.deliveries:
        delivery = _delivery(each, share)
        session.inflight.restore(each.packet_id, delivery)
        if not each.is_settled:
            share.carry(delivery)
    parts.shared.is_seated(share, parts.seat_of(handed.consumer, parts.shared.handed_to(share)))


def _delivery(handed: HandedDelivery, share: DealtShare) -> DealtMessage:
    """The group may be told of a settled delivery again, which it ignores."""
    delivery = DealtMessage(share, handed.serial, handed.queue_offset, handed.log_offset, handed.qos)
    delivery.released = handed.released
    return delivery


def _replay(handed: HandedReplay) -> HistoryReplay:
    replay = HistoryReplay(handed.subscription, handed.next, handed.stop, handed.resumes, lost=handed.lost)
    replay.start, replay.reached = handed.start, handed.reached
    return replay


def _backlog_item(handed: HandedBacklog, session: Session, retained: RetainedMessages) -> BacklogItem:
    if handed.message is not None:
        return _message(handed.message)
    if handed.listed is None:
        return handed.packet_id
    listed = handed.listed
    batch = RetainedBatch(listed.log_offsets, listed.qos, tuple(listed.subscription_ids), listed.topic_filter)
    if listed.after is not None and listed.subscription is not None:
        batch.more = MorePages(listed.subscription, listed.after, listed.end)
        batch.then = retained.going_on(session, batch.more)
    return batch
