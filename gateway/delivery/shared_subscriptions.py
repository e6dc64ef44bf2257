"""Shared subscriptions (MQTT 5, 4.8.2): sessions as consumers of the store's groups; no I/O.

`$share/NAME/FILTER` is the consumer group NAME over FILTER. A session asks for as many messages as its window has room
for. A message at QoS 0 is acknowledged to the group once it is written, and at QoS 1 once the client has acknowledged
it; if the connection ends first, it goes back to the group. A message at QoS 2 must go to no other client
[MQTT-4.8.2-5]: the session takes it over from the group, both in one append to the log. If the session ends with its
connection, a QoS 2 message is acknowledged to the group when the client has it, or the connection ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial

from gateway.delivery.expander import EXPANDED_BYTES, Expander
from gateway.mqtt._dealt import DealtMessage
from gateway.mqtt._mqtt import cross, deal
from gateway.mqtt.topics import split_shared
from gateway.sessions.core import Core
from gateway.sessions.group_subscription import GroupSubscription, HandedRange
from gateway.sessions.session import NONE, HeldMessage, Session, as_sent, packed_inflight
from notify.api import GroupConsumer, LeasedMessages, Receipt
from store.namespaces import namespace_of
from store.records.records import Record
from store.state.changes import GroupAdvanced, Progress, SubscriptionState
from store.state.group_settings import LATEST, MOST_IN_FLIGHT, GroupSettings, Strategy
from store.state.group_states import GroupKey
from store.state.offset_ranges import as_ranges

MOST_WANTED = 512  # messages that a session is handed at a time
WANTED_BYTES = 256 << 10
MANY_IN_FLIGHT = 8_192  # a group that may have so many need not hear of each acknowledgement at once
INVISIBLE_MS = 10_000  # after this time the messages of a gateway that was killed go to other consumers
EXTEND_S = 3.0
MOST_NAME_CHARACTERS = 255  # of a group
MOST_CONSUMER_CHARACTERS = 256
STICKY = "sticky"
STICKY_PARTITIONS = 64


class SharedSubscriptions:
    """Owner of the GroupSubscriptions of this gateway's sessions."""

    def __init__(self, core: Core, expander: Expander, knows_users: Callable[[], bool]) -> None:
        """`knows_users` returns whether clients have users."""
        settings = core.settings
        self._store = core.store
        self._expander = expander
        self._strategy = settings.shared_strategy
        self._strategies = dict(each.rsplit("=", 1) for each in settings.shared_strategies)
        self._turn = core.turn
        self._journal = core.journal
        self._knows_users = knows_users
        self._active: dict[GroupSubscription[Session], None] = {}  # those with work for deliver()
        self._is_held = False
        self._shares: dict[GroupSubscription[Session], None] = {}
        self._extended_s = 0.0
        self.transient = 0  # subscriptions of sessions that end with their connection
        self.durable = 0

    # --- coming and going

    def subscribe(
        self, session: Session, subscription: SubscriptionState, start: str, then: Callable[[str], None]
    ) -> None:
        """Join a group; a new group begins at `start`. `then` gets the reason if it fails, otherwise an empty text."""
        share = session.shares.get(subscription.topic_filter)
        if share is not None:
            share.subscription = subscription
            share.is_leaving = False
            share.prompt = share.seat is None or _is_awaited(share.seat.settings)
            self.has_work(share)
            then("")
            return
        share = GroupSubscription(session, subscription, group_of(subscription.topic_filter), self.has_work)
        session.add_share(subscription.topic_filter, share)
        self._shares[share] = None
        self._count(share, 1)
        if_new = self._settings_of(share.group[0])
        handed, opened = partial(self._handed, share), partial(self._opened, share, then)
        self._store.groups.join(
            share.group, _consumer(session.client_id), if_new, start, handed, opened, self._user(session)
        )

    def start(self, session: Session, subscriptions: Iterable[SubscriptionState]) -> None:
        """Join the groups of a session that has a connection again."""
        for subscription in subscriptions:
            self.subscribe(session, subscription, LATEST, _nothing)

    def take_over(self, session: Session, subscription: SubscriptionState) -> GroupSubscription[Session]:
        """Make the subscription of a session that another process had. The caller adds its seat and deliveries."""
        share = GroupSubscription(session, subscription, group_of(subscription.topic_filter), self.has_work)
        session.add_share(subscription.topic_filter, share)
        self._shares[share] = None
        self._count(share, 1)
        return share

    def handed_to(self, share: GroupSubscription[Session]) -> Callable[[LeasedMessages], None]:
        """Return the function that takes messages which the group hands to this subscription."""
        return partial(self._handed, share)

    def is_seated(self, share: GroupSubscription[Session], seat: GroupConsumer) -> None:
        share.seat = seat
        share.prompt = share.is_leaving or _is_awaited(seat.settings)
        self.has_work(share)

    def hold(self) -> None:
        """Until go_on(): ask groups for nothing more, give unsent messages back, and report acknowledgements."""
        self._is_held = True
        for share in self._shares:
            if share.seat is not None:
                share.seat.stop()
                share.is_wanting = False
                self._give_back(share)
                self._tell_acks(share)

    def go_on(self) -> None:
        """Resume after hold()."""
        self._is_held = False
        for share in self._shares:
            self.has_work(share)

    def _settings_of(self, name: str) -> GroupSettings:
        """The settings of a group that a subscription makes. No message of it becomes a dead letter."""
        strategy = self._strategies.get(namespace_of(name).plain_group(name), self._strategy)
        return GroupSettings(
            partitions=STICKY_PARTITIONS if strategy == STICKY else 0,
            invisible_ms=INVISIBLE_MS,
            max_deliveries=0,
            most_in_flight=MOST_IN_FLIGHT,
            strategy=Strategy.ROUND_ROBIN if strategy == STICKY else Strategy(strategy),
        )

    def _user(self, session: Session) -> str | None:
        """The user that will own the group if this subscription creates it; None: the group has no owner."""
        identity = session.link.identity if session.link is not None else None
        return identity.account if identity is not None and self._knows_users() else None

    def _opened(
        self, share: GroupSubscription[Session], then: Callable[[str], None], seat: GroupConsumer | str
    ) -> None:
        if share not in self._shares:  # the client left
            if not isinstance(seat, str):
                seat.close()
            return
        if isinstance(seat, str):
            self._forget(share)
            then(seat or "its group is not to be had")
            return
        self.is_seated(share, seat)
        then("")

    def _forget(self, share: GroupSubscription[Session]) -> None:
        self._count(share, -1)
        del self._shares[share]
        self._active.pop(share, None)
        share.session.drop_share(share.subscription.topic_filter)

    def _count(self, share: GroupSubscription[Session], number: int) -> None:
        if share.session.expiry_s:
            self.durable += number
        else:
            self.transient += number

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        """Leave a group. Messages that were sent stay with the client until it acknowledges them [MQTT-3.10.4-3]."""
        share = session.shares.get(topic_filter)
        if share is None or share.is_leaving:
            return False
        share.is_leaving = share.prompt = True
        share.is_wanting = False
        if share.seat is not None:
            share.seat.stop()
        self._give_back(share)
        self.has_work(share)
        return True

    def _give_back(self, share: GroupSubscription[Session]) -> None:
        """Give messages that the client was not sent back to the group."""
        if share.pending and share.seat is not None:
            share.seat.give_back([(run.serial, run.first, run.number) for run in share.pending])
        share.pending.clear()

    def leave(self, session: Session) -> bytes:
        """Leave all groups as the connection has ended; unacknowledged messages go back to the groups.

        Returns those of QoS 1, packed for the log.
        """
        if not session.shares:
            return b""
        if session.expiry_s and self._turn.batch.size:
            self._journal.store()  # what became the session's own must be known to the group first
        given_back = []
        for packet_id, outgoing in list(session.inflight.held.items()):
            if not outgoing.is_shared:
                continue
            if outgoing.qos == 2:
                outgoing.settle()
            else:
                given_back.append((packet_id, outgoing.log_offset))
            del session.inflight.held[packet_id]
        for share in list(session.shares.values()):
            if share.seat is not None:
                self._tell_acks(share)
                share.seat.close()
            self._forget(share)
        return packed_inflight(given_back)

    # --- per turn

    def _handed(self, share: GroupSubscription[Session], handed: LeasedMessages) -> None:
        share.is_wanting = False
        place = 0
        for serial, deliveries, first, number in handed.ranges:
            share.is_fresh = share.is_fresh or deliveries == 1
            share.pending.append(HandedRange(handed.records, place, serial, first, number))
            place += number
        self.has_work(share)

    def has_work(self, share: GroupSubscription[Session]) -> None:
        if share not in self._active:
            self._active[share] = None
            if not self._turn.ending:  # else deliver() is about to come, or sees to it
                self._turn.request()

    def room(self, sessions: Iterable[Session]) -> None:
        """Deliver more to these sessions: their windows or buffers have room again."""
        for session in sessions if self._shares else ():
            for share in session.shares.values():
                self._active[share] = None

    def deliver(self) -> None:
        """Send messages that groups handed out, report acknowledgements, and ask for more messages."""
        if not self._active or self._is_held or not self._store.sessions.are_ours:
            return
        active, self._active = self._active, {}
        for share in active:
            if share.seat is None or share not in self._shares:
                continue
            if share.pending:
                self._send(share)
            self._tell_acks(share)
            if not share.is_leaving:
                self._want(share, share.seat)
            elif not share.in_flight:
                share.seat.close()
                self._forget(share)
        if self._active:
            self._turn.request()

    def _tell_acks(self, share: GroupSubscription[Session]) -> None:
        if share.seat is None:
            return
        acks = share.collect_acks()
        if acks:
            then = partial(share.settling.difference_update, set(share.settling)) if share.settling else None
            share.seat.ack(acks, then)

    def _want(self, share: GroupSubscription[Session], seat: GroupConsumer) -> None:
        session = share.session
        if share.is_wanting or share.pending or session.connection.paused:
            return
        most = MOST_WANTED
        if share.subscription.qos:
            free = session.inflight.window - len(session.inflight)
            if free <= 0:
                session.inflight.blocked = True
                return
            most = min(most, max(1, free // len(session.shares)))
        share.is_wanting = True
        seat.want(most, WANTED_BYTES, INVISIBLE_MS)

    def _send(self, share: GroupSubscription[Session]) -> None:
        """Send the messages that were handed out, as far as window and buffer have room."""
        link, pending = share.session.connection, share.pending
        own: list[tuple[int, HeldMessage, int, bytes]] = []
        while pending and not link.paused:
            run = self._to_send(share)
            if run is None:
                break
            if run.first >= share.sent_until and not share.session.given_back:
                self._deal(share, run)
            if run.number and not self._send_next(share, run, own):
                break
            if not run.number:
                pending.popleft()
        if own:
            self._make_own(share, own)
        session = share.session
        if session.given_back and all(each.is_fresh and not each.pending for each in session.shares.values()):
            session.given_back = NONE

    def _to_send(self, share: GroupSubscription[Session]) -> HandedRange | None:
        """The first run, with payloads as they were published; only a part of it if they are large.

        None: they are being decompressed, and the session is told when that is done.
        """
        pending = share.pending
        run = pending[0]
        if not run.is_plain:
            records = self._expander.for_session(share.session, run.records, EXPANDED_BYTES, run.place, run.number)
            if records is None:
                return None
            run.is_plain = records is run.records
            if not run.is_plain:
                part = HandedRange(records, 0, run.serial, run.first, records.count, is_plain=True)
                run.skip(records.count)
                if not run.number:
                    pending.popleft()
                pending.appendleft(part)
                return part
        return run

    def _deal(self, share: GroupSubscription[Session], run: HandedRange) -> None:
        """Send the first messages of a run by the compiled path, up to one that it does not handle."""
        link, subscription = share.session.connection, share.subscription
        retain, ids = subscription.retain_as_published, share.subscription_ids
        stop = run.place + run.number
        end = deal(link, share, run.records, run.place, stop, run.serial, run.first, subscription.qos, retain, ids)
        run.skip(end - run.place)
        share.sent_until = run.first

    def _send_next(
        self, share: GroupSubscription[Session], run: HandedRange, own: list[tuple[int, HeldMessage, int, bytes]]
    ) -> bool:
        """Send one message, at any QoS. False: the window is full."""
        session, link, subscription = share.session, share.session.connection, share.subscription
        records, i, serial, queue_offset = run.records, run.place, run.serial, run.first
        record = Record._make(records[i])
        qos = min(record.qos, subscription.qos)
        is_known = self._is_known(share, serial, queue_offset)
        if qos and not is_known and session.inflight.is_full():
            session.inflight.blocked = True
            return False
        run.skip(1)
        share.sent_until = max(share.sent_until, run.first)
        cross(link, records, i)
        if is_known:
            return True
        retain, ids = record.retain and subscription.retain_as_published, share.subscription_ids
        is_own = qos == 2 and session.expiry_s > 0
        outgoing = HeldMessage(record.log_offset, qos, retain, ids)
        delivery = DealtMessage(share, serial, queue_offset, record.log_offset, qos)
        packet_id, is_again = _hold(session, record.log_offset, outgoing if is_own else delivery) if qos else (0, False)
        packet = link.encode_publish(records, i, qos, packet_id, is_again, retain, ids)
        if packet is None or not qos:  # expired, or too large for this client
            session.inflight.held.pop(packet_id, None)
            share.done(serial, queue_offset)
        elif is_own:
            own.append((packet_id, outgoing, queue_offset, packet))
            return True
        else:
            share.carry(delivery)
        if packet is not None:
            (link.answer_when_safe if qos == 2 else link.write)(packet)
        return True

    def _is_known(self, share: GroupSubscription[Session], serial: int, queue_offset: int) -> bool:
        """True if the client was sent this message before: a restarted store may hand it out again."""
        delivery = share.in_flight.get(queue_offset)
        if delivery is not None:
            delivery.serial = serial
        elif queue_offset in share.settling:
            share.done(serial, queue_offset)
        return delivery is not None or queue_offset in share.settling

    def _make_own(self, share: GroupSubscription[Session], own: list[tuple[int, HeldMessage, int, bytes]]) -> None:
        """Move QoS 2 messages from the group to the session, in one append; they are sent once that is safe."""
        session = share.session
        sent = [as_sent(packet_id, outgoing) for packet_id, outgoing, _, _ in own]
        self._journal.record(Progress(session.client_id, sent=sent))
        done = as_ranges(sorted(queue_offset for _, _, queue_offset, _ in own))
        taken = GroupAdvanced(*share.group, done=tuple(done))
        self._journal.record(taken)
        self._store.groups.will_take([taken])
        for _, _, _, packet in own:
            session.connection.answer_when_safe(packet)

    # --- several times a second

    def tick(self) -> None:
        """Extend the leases of messages that slow clients have, so that these do not go to other consumers."""
        now_s = self._turn.now_s
        if now_s - self._extended_s < EXTEND_S:
            return
        self._extended_s = now_s
        for share in self._shares:
            if share.pending and share.session.connection.paused:
                self._give_back(share)  # its client reads nothing
            if share.seat is not None and (share.in_flight or share.pending):
                had = [(delivery.serial, delivery.queue_offset, 1) for delivery in share.in_flight.values()]
                had += [(run.serial, run.first, run.number) for run in share.pending]
                share.seat.extend(_merged(had), INVISIBLE_MS)


def group_of(topic_filter: str) -> GroupKey:
    """The group of a shared subscription."""
    name, shared_filter = split_shared(topic_filter)
    assert name is not None
    return name, shared_filter


def _is_awaited(settings: GroupSettings) -> bool:
    """True if an acknowledgement may let another consumer get a message, so that it must be reported at once."""
    is_least = settings.strategy is Strategy.LEAST_IN_FLIGHT
    return settings.partitions > 0 or is_least or settings.most_in_flight < MANY_IN_FLIGHT


def _consumer(client_id: str) -> str:
    """The name of a client as a consumer of its group."""
    if len(client_id) <= MOST_CONSUMER_CHARACTERS:
        return client_id
    digest = hashlib.sha256(client_id.encode()).hexdigest()
    return client_id[: MOST_CONSUMER_CHARACTERS - len(digest)] + digest


def _hold(session: Session, log_offset: int, item: HeldMessage | DealtMessage) -> tuple[int, bool]:
    """Put a message in flight. Returns its packet_id, and whether the client may have been sent it before.

    A message that went back to the group when the last connection ended gets the packet_id that it had, if it is free.
    """
    packet_id = session.given_back.get(log_offset, 0)
    inflight = session.inflight
    is_free = packet_id and packet_id not in inflight.held
    if is_free and not any(packet_id == each for each, _ in inflight.unacknowledged()):
        inflight.restore(packet_id, item)
        return packet_id, True
    return inflight.hold(item), bool(packet_id)


def _merged(receipts: Iterable[Receipt]) -> list[Receipt]:
    """The receipts with adjacent ranges joined into one."""
    merged: list[Receipt] = []
    last = first = number = 0
    for serial, start, count in receipts:
        if serial == last and start == first + number:
            number += count
            continue
        if number:
            merged.append((last, first, number))
        last, first, number = serial, start, count
    if number:
        merged.append((last, first, number))
    return merged


def _nothing(_: str) -> None:
    """A callback for callers that do not wait for the answer."""
