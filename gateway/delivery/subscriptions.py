"""SUBSCRIBE: how subscriptions take effect, and from where they read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gateway.delivery.deliverer import Deliverer
from gateway.delivery.replays import FROM_PROPERTY as FROM_PROPERTY
from gateway.delivery.replays import reads_history, replay_from
from gateway.delivery.retained_messages import Pages, RetainedMessages
from gateway.delivery.shared_subscriptions import MOST_NAME_CHARACTERS, SharedSubscriptions
from gateway.delivery.withdrawal import Withdrawal
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import SubAck, Subscribe, SubscriptionRequest
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import split_shared, topic_fault
from gateway.sessions.answers import fitting
from gateway.sessions.core import Core
from gateway.sessions.session import HistoryReplay, Session
from lightqueue.queues.matching import has_wildcard
from lightqueue.reading.following import FROM_NOW, Followed
from notify.api import RetainedPage
from notify.steps import Awaited, in_steps
from store.state.changes import Subscribed, SubscriptionState
from store.state.group_settings import LATEST
from store.state.sessions import is_shared

MOST_NAMED_CHARACTERS = 100  # of a topic filter in a reason string

GRANTED_PER_TURN = 16  # subscriptions of all clients together: some 0.5 ms
GRANTED_CHARACTERS = 32  # characters of a topic filter that cost as much as one more subscription
GRANTED_SHARED = 3  # additional cost of a shared subscription, in subscriptions

Refusal = tuple[ReasonCode, str]
NO_POSITION: Final = (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, f"{FROM_PROPERTY} is no position here")
Granted = tuple[SubscriptionState, int]
"""A subscription, and its place in the packet."""


@dataclass(slots=True)
class _PendingSubscribe:
    """A SUBSCRIBE that is not answered yet."""

    session: Session
    subscribe: Subscribe
    epoch: int  # of the permissions by which it was checked
    answered: Awaited  # answers of the store, and one more until all subscriptions were checked
    replay_from: str | None = None
    looked_at: int = 0  # number of subscriptions that are granted or refused so far
    added: set[str] = field(default_factory=set)  # filters of new granted subscriptions, not in the session yet
    refusals: Mapping[int, ReasonCode] = field(default_factory=dict)  # refused subscriptions, by index in the packet
    quota: str = ""  # the reason if some of them exceed a quota
    # where a replay begins, by index in the packet: a queue_offset, or a log_offset if no queue has all messages
    positions: dict[int, int] = field(default_factory=dict)
    log_offsets: dict[int, int] = field(default_factory=dict)
    froms: dict[int, int] = field(default_factory=dict)  # log_offset of a queue's replay; the tier may have some of it
    places: dict[str, list[int]] = field(default_factory=dict)  # of places_of(), by topic filter
    answers: list[ReasonCode] = field(default_factory=list)
    why: str = ""  # the reason string: why the first refused subscription is refused
    pages: Pages = field(default_factory=list)  # retained messages to be sent

    def places_of(self, topic_filter: str) -> list[int]:
        """The indices of a topic filter in the packet."""
        if not self.places:
            for i, wanted in enumerate(self.subscribe.subscriptions):
                self.places.setdefault(wanted.topic_filter, []).append(i)
        return self.places[topic_filter]

    def refusal(self, i: int) -> Refusal | None:
        """The reason why permissions or a quota refuse the i-th subscription; None: they do not."""
        reason_code = self.refusals.get(i)
        if reason_code is None:
            return None
        if reason_code is ReasonCode.QUOTA_EXCEEDED:
            return reason_code, self.quota
        asks_more = reason_code is ReasonCode.NOT_AUTHORIZED and reads_history(self.subscribe)
        return reason_code, "not allowed, or not with its history (`replay`)" if asks_more else "not allowed"

    def fault(self, i: int) -> Refusal | None:
        """A refusal if the i-th subscription's replay has no position to begin at; None: it has."""
        if self.replay_from is None or i in self.positions or i in self.log_offsets or i in self.froms:
            return None
        return NO_POSITION

    @property
    def subscription_id(self) -> int:
        return next(iter(self.subscribe.properties.subscription_identifiers), 0)


class Subscriptions:
    """The rules of SUBSCRIBE. Sessions and the Deliverer own the results."""

    def __init__(
        self,
        core: Core,
        deliverer: Deliverer,
        shared: SharedSubscriptions,
        retained: RetainedMessages,
        withdrawal: Withdrawal,
        judge_again: Callable[[Session, Callable[[set[str]], None]], None],
    ) -> None:
        """`judge_again`: AccessReview.judge()."""
        self._arrived: deque[_PendingSubscribe] = deque()  # granted at the end of this turn
        self._queues = core.store.queues
        self._history = core.store.history
        self._settings = core.settings
        self._turn = core.turn
        self._journal = core.journal
        self._soon = core.scheduler.soon
        self._deliverer = deliverer
        self._replays = deliverer.replays
        self._shared = shared
        self.retained = retained
        self._lookups = retained.lookups
        self._withdrawal = withdrawal
        self._judge_again = judge_again

    def subscribe(
        self, session: Session, subscribe: Subscribe, epoch: int, refusals: Mapping[int, ReasonCode], quota: str = ""
    ) -> None:
        """Make every granted subscription take effect, then answer. The client's next packets wait until then.

        `epoch`: the permissions' epoch when `refusals` were found. `quota`: the reason of those with QUOTA_EXCEEDED.
        """
        answered = Awaited(0, lambda: self._all_answered(request))
        request = _PendingSubscribe(
            session, subscribe, epoch, answered, replay_from(subscribe), refusals=refusals, quota=quota
        )
        session.connection.wait(is_read=True)  # to take it from epoll and back would put it after others there
        if request.replay_from is None:
            self._ready(request)
        else:
            in_steps(self._locate_all(request, request.replay_from), self._soon)

    def _locate_all(self, request: _PendingSubscribe, where: str) -> Iterator[None]:
        located = Awaited(len(request.subscribe.subscriptions), partial(self._ready, request))
        for i, wanted in enumerate(request.subscribe.subscriptions):
            if request.session.link is None:
                return
            if is_shared(wanted.topic_filter):  # a group that is there goes on where it is
                _located(located, request.positions, i, 0)
            else:
                self._locate(request, located, i, wanted.topic_filter, where)
            yield

    def _locate(self, request: _PendingSubscribe, located: Awaited, i: int, topic_filter: str, where: str) -> None:
        """Find where the i-th subscription's replay begins.

        A queue_offset is a position in the filter's own queue. Any other position is looked for in a queue only if one
        has all matching messages, otherwise in the log.
        """
        is_offset = where.removeprefix("@").isdecimal()
        if where == "now" or where.startswith("="):
            _located(located, {}, i, None)
        elif is_offset or _has_queue(topic_filter):

            def sought(log_offset: int | None) -> None:
                def found(position: int | None) -> None:
                    if log_offset is not None and (position is not None or self._history.may_have(log_offset)):
                        request.froms[i] = log_offset
                    _located(located, request.positions, i, position)

                self._queues.locate(topic_filter, where, found)

            self._replays.seek(topic_filter, f"@{where.lstrip('@')}" if is_offset else where, sought)
        else:
            self._replays.seek(topic_filter, where, partial(_located, located, request.log_offsets, i))

    def _ready(self, request: _PendingSubscribe) -> None:
        self._arrived.append(request)
        self._turn.has_asked = True
        self._turn.request()

    def grant(self) -> None:
        """Grant the next subscriptions, all in one append.

        Call this at the end of a turn, after incoming messages were stored; and before a message is accepted that was
        read after a SUBSCRIBE.
        """
        self._turn.has_asked = False
        if not self._arrived:
            return
        left, parts = GRANTED_PER_TURN, []
        while self._arrived and left > 0:
            request = self._arrived[0]
            count = len(request.subscribe.subscriptions)
            if request.session.link is not None:
                count_now, cost = _next_of(request, left)
                parts.append((request, *self._check_next(request, count_now)))
                left -= cost
            if request.session.link is None or request.looked_at == count:
                self._arrived.popleft()
        if self._journal.store():
            for request, granted, wanted_retained in parts:
                self._follow(request, granted, wanted_retained)
                if request.looked_at == len(request.subscribe.subscriptions):
                    request.answered.came()
            self._lookups.go_on()
        if self._arrived:
            self._turn.request()

    def _check_next(self, request: _PendingSubscribe, most: int) -> tuple[list[Granted], list[SubscriptionState]]:
        """Decide and record the next `most` subscriptions of a packet.

        Returns the granted ones, and those of them that want retained messages.
        """
        session, begin = request.session, request.looked_at
        wanted_now = request.subscribe.subscriptions[begin : begin + most]
        room = _room(session, len(wanted_now), self._settings.max_subscriptions_per_session) - len(request.added)
        granted: list[Granted] = []
        request.answered.number += not begin
        for i, wanted in enumerate(wanted_now, begin):
            is_new = not any(wanted.topic_filter in each for each in (session.readers, session.shares, request.added))
            refusal = request.refusal(i) or _check(session, wanted, is_new, room) or request.fault(i)
            if refusal is None:
                if is_new:
                    request.added.add(wanted.topic_filter)
                    room -= 1
                granted.append((_state(wanted, request.subscription_id, self._queues.end), i))
                request.answers.append(ReasonCode(int(wanted.qos)))
            else:
                request.answers.append(refusal[0])
                topic_filter = session.connection.names.plain_filter(wanted.topic_filter)
                request.why = request.why or f"{topic_filter[:MOST_NAMED_CHARACTERS]}: {refusal[1]}"
        request.looked_at += len(wanted_now)
        states = [state for state, _ in granted]
        wanted_retained = [state for state in states if self.retained.are_wanted(session, state)]
        request.answered.number += len(states) + len(wanted_retained)
        if states and session.expiry_s:
            request.answered.number += 1
            self._journal.record(Subscribed(session.client_id, states))
            self._journal.when_safe(session.connection, request.answered.came)
        return granted, wanted_retained

    def _follow(
        self, request: _PendingSubscribe, granted: list[Granted], wanted_retained: list[SubscriptionState]
    ) -> None:
        session = request.session
        for state, i in granted:
            if is_shared(state.topic_filter):
                start = request.replay_from or LATEST
                self._shared.subscribe(session, state, start, partial(self._joined, request, state))
                continue
            begin = request.froms.get(i, FROM_NOW)
            history = i in request.positions or begin != FROM_NOW or bool(session.logged and state.qos)
            then = partial(self._followed, request, state, i)
            self._queues.follow(state.topic_filter, begin, history, state.qos > 0, then)
        for state in wanted_retained:
            self._lookups.add(state.topic_filter, None, partial(self._first_page, request, state))

    def _followed(self, request: _PendingSubscribe, state: SubscriptionState, i: int, followed: list[Followed]) -> None:
        """Make one subscription take effect; one that replaces another goes on from the other's position."""
        session = request.session
        if session.link is None:
            for source in followed:
                self._queues.unfollow(source.queue)
            return
        if not followed:
            self._refused(request, state.topic_filter, ReasonCode.QUOTA_EXCEEDED, "the store follows no more queues")
            return
        start, begins = request.froms.get(i), followed[0].begins
        if start is not None and i not in request.positions and start >= begins:
            for source in followed:
                self._queues.unfollow(source.queue)
            self._refused(request, state.topic_filter, *NO_POSITION)
            return
        request.added.discard(state.topic_filter)
        replaced = session.drop_readers(state.topic_filter)
        end = self._queues.end
        new = session.add_readers(state, followed, end)
        position, log_offset = request.positions.get(i), request.log_offsets.get(i)
        for old in replaced:
            for each in new:
                if old.queue is each.queue and (old.qos or not state.qos) and log_offset is None:
                    each.position, each.reached, each.since = old.position, old.reached, old.since
                    each.skip_qos0_before = old.skip_qos0_before
            self._deliverer.remove(old)
        if position is not None:
            new[0].position = position
            new[0].since = new[0].reached = new[0].skip_qos0_before = 0
        if start is not None:
            new[0].since = new[0].reached = max(start, begins)
            new[0].skip_qos0_before = 0
        for each in new:
            self._deliverer.add(each)
        if log_offset is not None:
            self._replays.begin(session, HistoryReplay(state, log_offset, end))
        elif start is not None and start < begins:  # what the queue does not have any more is in the tier
            self._replays.begin(session, HistoryReplay(state, start, begins))
        request.answered.came()

    def _joined(self, request: _PendingSubscribe, state: SubscriptionState, why_not: str) -> None:
        """Note that a shared subscription joined its group, or refuse it."""
        if not why_not:
            request.answered.came()
            return
        is_new = request.replay_from is None
        reason_code = ReasonCode.QUOTA_EXCEEDED if is_new else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        self._refused(request, state.topic_filter, reason_code, why_not)

    def _refused(self, request: _PendingSubscribe, topic_filter: str, reason_code: ReasonCode, why: str) -> None:
        """Refuse a subscription that was granted and cannot take effect."""
        plain_filter = request.session.connection.names.plain_filter(topic_filter)
        request.why = request.why or f"{plain_filter[:MOST_NAMED_CHARACTERS]}: {why}"
        request.added.discard(topic_filter)
        for i in request.places_of(topic_filter):
            if i < len(request.answers):
                request.answers[i] = reason_code
        self._withdrawal.take_away(request.session, [topic_filter])
        request.answered.came()

    def _all_answered(self, request: _PendingSubscribe) -> None:
        """Answer a SUBSCRIBE, or check it again first if permissions were reloaded meanwhile."""
        if request.session.link is None:
            return
        if request.epoch == self._turn.permit_epoch:
            self._answer(request)
        else:  # a reload looked only at what had taken effect then
            self._judge_again(request.session, partial(self._judged_again, request))

    def _judged_again(self, request: _PendingSubscribe, taken: set[str]) -> None:
        if request.session.link is None:
            return
        for i, wanted in enumerate(request.subscribe.subscriptions):
            if wanted.topic_filter in taken and request.answers[i] <= ReasonCode.GRANTED_QOS_2:
                request.answers[i] = ReasonCode.NOT_AUTHORIZED
                request.why = request.why or "not allowed"
        request.pages = [each for each in request.pages if each[0].topic_filter not in taken]
        self._answer(request)

    def _answer(self, request: _PendingSubscribe) -> None:
        session, link = request.session, request.session.connection
        properties = Properties(reason_string=request.why or None)
        link.write(fitting(link, SubAck(request.subscribe.packet_id, tuple(request.answers), properties)))
        if request.pages:
            self.retained.send(session, request.pages)
        if link.waiting:
            self._soon(link.proceed)

    def _first_page(self, request: _PendingSubscribe, subscription: SubscriptionState, page: RetainedPage) -> None:
        """Keep the first page of messages that were retained when the subscription took effect.

        Newer messages come from its queues.
        """
        request.pages.append((subscription, page))
        request.answered.came()


def _check(session: Session, wanted: SubscriptionRequest, is_new: bool, room: int) -> Refusal | None:
    """The reason why a subscription is refused; None if it is granted."""
    if is_shared(wanted.topic_filter) and not _is_group(wanted.topic_filter):
        return ReasonCode.TOPIC_FILTER_INVALID, "it names no group"
    if session.connection.tenant is not None and (fault := topic_fault(wanted.topic_filter)):
        return ReasonCode.TOPIC_FILTER_INVALID, f"with its namespace it {fault}"
    if is_new and room <= 0:
        return ReasonCode.QUOTA_EXCEEDED, "max_subscriptions_per_session is reached"
    return None


def _located(located: Awaited, found: dict[int, int], i: int, position: int | None) -> None:
    """Note where the i-th subscription's replay begins; None: the position does not exist."""
    if position is not None:
        found[i] = position
    located.came()


def _room(session: Session, number: int, most: int) -> int:
    """The number of subscriptions that a session may still add, up to `most`.

    A filter that has two readers counts twice, unless that leaves less room than `number`: so the exact count, which
    takes longer, is made only near the limit.
    """
    most -= len(session.shares)
    room = most - len(session.readers)
    return room if room >= number else most - sum(not each.only_live for each in session.readers.values())


def _next_of(request: _PendingSubscribe, most: int) -> tuple[int, int]:
    """(number of a packet's subscriptions that are granted next, their cost); the number is at least 1."""
    cost = 0
    for count, wanted in enumerate(request.subscribe.subscriptions[request.looked_at :][:most], 1):
        cost += 1 + len(wanted.topic_filter) // GRANTED_CHARACTERS
        cost += GRANTED_SHARED * is_shared(wanted.topic_filter)
        if cost >= most:
            return count, cost
    return len(request.subscribe.subscriptions) - request.looked_at, cost


def _has_queue(topic_filter: str) -> bool:
    """True if one queue has all messages of a filter that are in the log: a topic's queue, or a first level's."""
    level, _, rest = topic_filter.partition("/")
    return not has_wildcard(topic_filter) or (rest == "#" and not has_wildcard(level))


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


def _is_group(topic_filter: str) -> bool:
    """True if a shared subscription has a valid group name."""
    try:
        name, _ = split_shared(topic_filter)
    except ProtocolError:
        return False
    return name is not None and len(name) <= MOST_NAME_CHARACTERS
