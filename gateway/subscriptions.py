"""SUBSCRIBE and UNSUBSCRIBE: what a subscription takes effect on, the retained messages it brings, and replay."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime

from gateway.codec import encode
from gateway.delivery import Delivery
from gateway.exchange import Exchange
from gateway.journal import Journal
from gateway.packets import RetainHandling, SubAck, Subscribe, SubscriptionRequest, UnsubAck, Unsubscribe
from gateway.reason_codes import ReasonCode
from gateway.session import Outgoing, Session
from gateway.settings import GatewaySettings
from gateway.sys_topics import SysTopics
from gateway.topics import split_shared
from lightqueue._queues import Queue
from lightqueue.errors import NoSuchPosition
from lightqueue.matching import has_wildcard, matches
from lightqueue.message_store import MessageStore
from store.changes import Subscribed, SubscriptionState, Unsubscribed
from store.records import RecordFlag

FROM_PROPERTY = "penstock-from"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Subscriptions:
    """The rules of subscribing; sessions and delivery own the results."""

    def __init__(
        self,
        store: MessageStore,
        settings: GatewaySettings,
        journal: Journal,
        exchange: Exchange,
        delivery: Delivery,
        sys_topics: SysTopics,
    ) -> None:
        self._store = store
        self._settings = settings
        self._journal = journal
        self._exchange = exchange
        self._delivery = delivery
        self._sys_topics = sys_topics

    def subscribe(self, session: Session, subscribe: Subscribe) -> None:
        """Make every granted subscription take effect, then answer."""
        link = session.connection
        replay_from = dict(subscribe.properties.user_properties).get(FROM_PROPERTY)
        subscription_id = next(iter(subscribe.properties.subscription_identifiers), 0)
        granted: list[SubscriptionState] = []
        answers = []
        added: set[str] = set()
        for request in subscribe.subscriptions:
            reason_code = self._check(session, request, replay_from, added)
            if reason_code is None:
                if request.topic_filter not in session.readers:
                    added.add(request.topic_filter)
                granted.append(_state(request, subscription_id, self._store.end))
                reason_code = ReasonCode(int(request.qos))
            answers.append(reason_code)
        if granted and session.expiry_s:
            self._journal.record(Subscribed(session.client_id, granted))
            if not self._journal.store():
                link.close(ReasonCode.QUOTA_EXCEEDED)
                return
        new = [self._apply(session, subscription, replay_from) for subscription in granted]
        suback = encode(SubAck(subscribe.packet_id, tuple(answers)), link.version)
        if session.expiry_s:
            self._journal.when_safe(link, lambda: link.write(suback))
        else:
            link.write(suback)
        for subscription, is_new in zip(granted, new, strict=True):
            self._send_retained(session, subscription, is_new)

    def _check(
        self, session: Session, request: SubscriptionRequest, replay_from: str | None, added: set[str]
    ) -> ReasonCode | None:
        """Why a subscription is refused; None if it is granted."""
        version = session.link.version if session.link else 5
        if version == 5 and split_shared(request.topic_filter)[0] is not None:
            return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        known = request.topic_filter in session.readers or request.topic_filter in added
        if not known and session.has_subscriptions(self._settings.max_subscriptions_per_session - len(added)):
            return ReasonCode.QUOTA_EXCEEDED
        if replay_from is not None:
            try:
                queue = self._store.queues.stored(request.topic_filter)
                if queue is None:
                    return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
                self._replay_position(queue, replay_from)
            except NoSuchPosition:
                return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        return None

    def _apply(self, session: Session, subscription: SubscriptionState, replay_from: str | None) -> bool:
        """Replace or add one subscription; a replaced one goes on from its place. True if it is new."""
        replaced = session.drop_readers(subscription.topic_filter)
        reader = session.follow(self._store, subscription, self._store.end, replay_from is not None)
        new = session.readers_of(subscription.topic_filter)
        for old in replaced:
            for each in new:
                if old.queue is each.queue and (old.qos or not subscription.qos):
                    each.position, each.since, each.skip_qos0_before = old.position, old.since, old.skip_qos0_before
            self._delivery.remove(old)
        if replay_from is not None:
            reader.position = self._replay_position(reader.queue, replay_from)
            reader.since = reader.skip_qos0_before = 0
        for each in new:
            self._delivery.add(each)
        return not replaced

    def _replay_position(self, queue: Queue, text: str) -> int:
        """queue_offset that `earliest`, `-1h`, an RFC 3339 time or a number stands for."""
        queues = self._store.queues
        if text == "earliest":
            return queues.position_of(queue, self._store.log.first)
        if re.fullmatch(r"@?\d{1,19}", text):
            return min(max(int(text.lstrip("@")), queues.first_offset(queue)), int(queue.next_offset))
        return queues.position_at(queue, _time_ms(text))

    # --- retained messages

    def _send_retained(self, session: Session, subscription: SubscriptionState, is_new: bool) -> None:
        """MQTT 5, 3.8.3.1: at each subscribe, only at a new one, or never."""
        handling = subscription.retain_handling
        if handling == RetainHandling.DO_NOT_SEND:
            return
        if handling == RetainHandling.SEND_IF_NEW_SUBSCRIPTION and not is_new:
            return
        self._sys_topics.send_to(session, subscription)
        ids = (subscription.subscription_id,) if subscription.subscription_id else ()
        found: list[Outgoing] = []
        for log_offset in self._retained(subscription.topic_filter):
            try:
                record = self._store.record(log_offset)
            except LookupError:
                continue
            if subscription.no_local and record.client_id == session.client_id.encode():
                continue
            qos = min(record.flags & RecordFlag.QOS_MASK, subscription.qos)
            found.append(Outgoing(log_offset, qos, True, ids, owed=True))
        self._exchange.owe(session, found)
        self._delivery.room([session])

    def _retained(self, topic_filter: str) -> Iterator[int]:
        """log_offsets of the retained messages whose topics a filter matches."""
        retained = self._store.retained
        if not has_wildcard(topic_filter):
            log_offset = retained.get(topic_filter.encode())
            if log_offset is not None:
                yield log_offset
            return
        levels = topic_filter.split("/")
        wild = next(i for i, level in enumerate(levels) if has_wildcard(level))
        prefix = "/".join([*levels[:wild], ""]) if wild else ""
        if levels[wild] == "#" and wild:  # `a/#` matches `a` as well
            parent = retained.get("/".join(levels[:wild]).encode())
            if parent is not None:
                yield parent
        for topic, log_offset in retained.below(prefix.encode()):
            if matches(topic_filter, topic.decode()):
                yield log_offset

    # --- leaving

    def unsubscribe(self, session: Session, unsubscribe: Unsubscribe) -> None:
        answers = []
        gone = []
        for topic_filter in unsubscribe.topic_filters:
            readers = session.drop_readers(topic_filter)
            if not readers:
                answers.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                continue
            answers.append(ReasonCode.SUCCESS)
            gone.append(topic_filter)
            for reader in readers:
                self._delivery.remove(reader)
        if gone and session.expiry_s:
            self._journal.record(Unsubscribed(session.client_id, gone))
        link = session.connection
        codes = tuple(answers) if link.version == 5 else ()
        link.answer_when_safe(encode(UnsubAck(unsubscribe.packet_id, codes), link.version))


def _state(request: SubscriptionRequest, subscription_id: int, log_offset: int) -> SubscriptionState:
    return SubscriptionState(
        request.topic_filter,
        int(request.qos),
        request.no_local,
        request.retain_as_published,
        int(request.retain_handling),
        subscription_id,
        log_offset,
    )


def _time_ms(text: str) -> int:
    """Unix time in ms of `-1h` or an RFC 3339 time. Raises NoSuchPosition."""
    ago = re.fullmatch(r"-(\d{1,9})([smhd])", text)
    if ago:
        return int((time.time() - int(ago[1]) * _UNITS_S[ago[2]]) * 1000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise NoSuchPosition(text) from None
