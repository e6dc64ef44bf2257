"""Replay for topic filters that no queue has completely (`+/x`, `#`, `a/+/c`): pages of the log, then live messages.

The next page is asked for once the page before it has been passed to the client's connection; a page that takes long,
from the tier or over the wire, is asked for while the page before it is sent. So a replay needs memory for two pages.
A page is sent as a queue's range is; but messages that stay in flight after the connection are sent one by one, since
the log records them. A replay ends with its connection. Messages of the session's queues wait for the replay. A session
that was away, or slow, for longer than the log keeps messages reads the same pages from the tier: then its position
waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from gateway.delivery.exchange import Exchange
from gateway.delivery.expander import Expander
from gateway.mqtt._mqtt import BLOCKED, DONE, SESSION, Reader
from gateway.mqtt.packets import Subscribe
from gateway.sessions.core import Core
from gateway.sessions.session import HeldMessage, HistoryReplay, LaterReader, Session
from lightqueue.queues._queues import LIVE, Queue
from notify.api import Page, Past, SoughtPosition, pasts_of
from store.records._records import Records, records_from
from store.records.records import RecordFlag
from store.state.changes import SubscriptionState
from store.topics import matches

FROM_PROPERTY = "penstock-from"
WITHOUT_HISTORY = ("now", "latest")

COMPRESSED: Final = int(RecordFlag.COMPRESSED)
NO_STOP: Final = (1 << 64) - 1  # log_offset
RECORD_ALIGNMENT_BYTES: Final = 8
ASK_AGAIN_S: Final = 1.0  # the wait before history is asked for again that could not be read


def replay_from(subscribe: Subscribe) -> str | None:
    """The position from which a SUBSCRIBE wants to read; None: from now on."""
    return dict(subscribe.properties.user_properties).get(FROM_PROPERTY)


def reads_history(subscribe: Subscribe) -> bool:
    """True if a SUBSCRIBE asks for messages older than itself, besides retained ones."""
    where = replay_from(subscribe)
    return where is not None and where not in WITHOUT_HISTORY


class Replays:
    """The rules of replays. A session owns its replays."""

    def __init__(
        self, core: Core, exchange: Exchange, expander: Expander, room: Callable[[list[Session]], object]
    ) -> None:
        """`room` is called with sessions that have more to be sent."""
        self._store = core.store
        self._turn = core.turn
        self._exchange = exchange
        self._expander = expander
        self._room = room
        self._soon = core.scheduler.soon
        self._later = core.scheduler.later
        self._queue_qos0 = core.settings.queue_qos0

    def seek(self, topic_filter: str, where: str, then: Callable[[int | None], None], start: int = 0) -> None:
        """Find the log_offset of a position such as `earliest` or a time; `then` gets it, or None if there is none.

        Each step looks at a part of the log.
        """

        def sought(found: SoughtPosition | None) -> None:
            if found is None or found.found:
                then(None if found is None else found.log_offset)
            else:
                self._soon(partial(self.seek, topic_filter, where, then, found.log_offset))

        self._store.history.seek(topic_filter, where, start, sought)

    def begin(self, session: Session, replay: HistoryReplay) -> None:
        """Begin a replay. The messages of the subscription's readers, which may be added later, are sent after it."""
        session.replays = [*session.replays, replay]
        session.connection.behind = True
        self._room([session])
        self._turn.request()

    def begin_for(self, reader: Reader, start: int) -> None:
        """Begin a replay for a reader: from log_offset `start` up to the one that the reader has reached."""
        subscription = SubscriptionState(
            reader.topic_filter,
            reader.qos,
            no_local=reader.no_local,
            retain_as_published=reader.retain_as_published,
            subscription_id=reader.subscription_id,
        )
        replay = HistoryReplay(subscription, start, reader.reached, resumes=reader.qos > 0)
        if replay.resumes:  # what it has looked at ends inside a record, and the log is read from where one begins
            replay.next = start & -RECORD_ALIGNMENT_BYTES
        self.begin(reader.session, replay)

    def end(self, session: Session, replay: HistoryReplay) -> None:
        """End a replay that is complete or no longer allowed; the messages of its subscription's queues come next."""
        session.replays = [each for each in session.replays if each is not replay]
        session.connection.behind = session.has_something_first
        self._room([session])
        self._turn.request()

    def go_on(self, session: Session) -> int | None:
        """Send more of a page, or ask for the next page of the replay that stands furthest back.

        Returns the result of Link.deliver(); None: the next page has not come yet, or there is no more.
        """
        for replay in session.replays:
            if replay.page is not None:
                return self._send(session, replay, *replay.page)
        replay = min(session.replays, key=attrgetter("next"))
        replay.reached = max(replay.start, replay.next)  # `next` may stand inside what was sent before
        if replay.ahead is not None:
            self._take(session, replay, replay.ahead)
            return None if replay.page is None else self._send(session, replay, *replay.page)
        if replay.next >= replay.stop:
            self.end(session, replay)
        elif not replay.asked:
            self._ask(session, replay)
        return None

    def _send(self, session: Session, replay: HistoryReplay, reader: Reader, records: Records) -> int | None:
        """Send as much of a page as the client takes, by the compiled path."""
        found = records
        if records.flags & COMPRESSED:
            plain = self._expander.for_session(session, records, start=reader.position)
            if plain is None:
                return None
            found = plain
        outcome = session.connection.deliver([reader], [found], self._store.queues.safe)
        if outcome == SESSION:
            outcome = DONE if self._exchange.send_next(session, [reader], [found], NO_STOP) else BLOCKED
        if reader.position >= records.next:
            replay.page = None
            if replay.next >= replay.stop:
                self.end(session, replay)
        return outcome

    def _ask(self, session: Session, replay: HistoryReplay) -> None:
        replay.asked = True
        page = partial(self._came, session, replay)
        self._store.history.page(replay.subscription.topic_filter, replay.next, replay.stop, page)

    def _came(self, session: Session, replay: HistoryReplay, page: Page | None) -> None:
        if session.link is None or replay not in session.replays:
            return
        if page is not None and not page.records and page.next <= replay.next:  # it cannot be read now
            self._later(ASK_AGAIN_S, partial(self._ask_again, session, replay))
            return
        replay.asked = False
        if page is None:  # what it stood at is not kept any more
            page = Page(b"", replay.stop)
        replay.ahead = page
        session.connection.behind = session.has_something_first
        self._room([session])
        self._turn.request()

    def _take(self, session: Session, replay: HistoryReplay, page: Page) -> None:
        """Make a page the one that is sent next. If the next page comes from elsewhere, it is asked for at once."""
        replay.ahead = None
        replay.next = max(page.next, replay.next)
        if page.records and not replay.resumes and not (session.expiry_s and replay.subscription.qos):
            records = records_from(page.records, 0)
            queue = Queue(b"", LIVE, next_offset=records.next)
            replay.page = session.reader_of(queue, replay.subscription), records
        else:
            self._put_off(session, replay, page)
        if replay in session.replays and replay.next < replay.stop and self._store.history.may_have(replay.next):
            self._ask(session, replay)
        session.connection.behind = session.has_something_first
        self._room([session])
        self._turn.request()

    def _put_off(self, session: Session, replay: HistoryReplay, page: Page) -> None:
        """Put off the messages of a page: they are sent one by one, as the log records them."""
        make = partial(_resumed, self._queue_qos0) if replay.resumes else _outgoing
        found = list(make(session, replay, pasts_of(page.records)))
        if replay.next >= replay.stop:
            if replay.lost:
                session.connection.misses(replay.lost)
                replay.lost = 0
            if not replay.resumes:
                session.replays = [each for each in session.replays if each is not replay]
        self._exchange.put_off(session, found)

    def _ask_again(self, session: Session, replay: HistoryReplay) -> None:
        if session.link is not None and replay in session.replays:
            self._ask(session, replay)


def _outgoing(session: Session, replay: HistoryReplay, messages: list[Past]) -> Iterator[HeldMessage]:
    """The messages of a page that the client is sent. A skipped message passes its count of lost messages on."""
    subscription = replay.subscription
    ids = (subscription.subscription_id,) if subscription.subscription_id else ()
    client_id = session.client_id.encode()
    for past in messages:
        replay.lost += past.lost
        if subscription.no_local and past.client_id == client_id:
            continue
        qos, retain = min(past.qos, subscription.qos), past.retain and subscription.retain_as_published
        yield HeldMessage(past.log_offset, qos, retain, ids, owed=True, lost=replay.lost)
        replay.lost = 0


def _resumed(has_qos0: bool, session: Session, replay: HistoryReplay, messages: list[Past]) -> Iterator[HeldMessage]:
    """Like _outgoing(), but for a page in place of the session's queues, which no longer have its messages.

    Each message is sent once, however many subscriptions match, and not if it was in flight already. `has_qos0`: queues
    keep messages of QoS 0 for clients that are away.
    """
    if replay.later is None:
        replay.later = _later_readers(session, replay)
    resuming = [each for each in session.replays if each.resumes]
    client_id = session.client_id.encode()
    of_topics: dict[bytes, list[_Match]] = {}
    for past in messages:
        replay.lost += past.lost
        of_topic = of_topics.get(past.topic)
        if of_topic is None:
            of_topic = of_topics[past.topic] = _matches_of(past.topic.decode(), resuming)
        is_own = past.client_id == client_id
        matching = [each for each in of_topic if each.has(past.log_offset, is_own)]
        sender = next((each.replay for each in matching if not each.leaves(past.log_offset, is_own)), None)
        if sender is not replay or past.log_offset in session.skip:
            continue
        subscriptions = [each.replay.subscription for each in matching]
        qos = min(past.qos, max(each.qos for each in subscriptions))
        if not qos and not has_qos0:
            continue
        retain = past.retain and any(each.retain_as_published for each in subscriptions)
        ids = tuple(each.subscription_id for each in subscriptions if each.subscription_id)
        yield HeldMessage(past.log_offset, qos, retain, ids, lost=replay.lost)
        replay.lost = 0


class _Match(NamedTuple):
    """A replay whose subscription matches a topic, and the later readers that match the topic as well."""

    replay: HistoryReplay
    later: list[LaterReader]

    def has(self, log_offset: int, is_own: bool) -> bool:
        """Whether the replay has a message. `is_own`: the session's client published it."""
        replay = self.replay
        return replay.start <= log_offset < replay.stop and not (is_own and replay.subscription.no_local)

    def leaves(self, log_offset: int, is_own: bool) -> bool:
        """Whether a later reader sends the message."""
        return any(each.reached <= log_offset and not (is_own and each.no_local) for each in self.later)


def _matches_of(topic: str, replays: list[HistoryReplay]) -> list[_Match]:
    return [
        _Match(replay, [each for each in replay.later or () if matches(each.topic_filter, topic)])
        for replay in replays
        if matches(replay.subscription.topic_filter, topic)
    ]


def _later_readers(session: Session, replay: HistoryReplay) -> list[LaterReader]:
    """The readers of the session that come to messages of a replay once it is over.

    Retention does not pass all of a session's queues at once. If two subscriptions match a message, the reader that
    comes to it last sends it, because that reader does not know what an earlier replay has sent.
    """
    subscription = replay.subscription
    return [
        LaterReader(reader.reached, reader.topic_filter, reader.no_local)
        for reader in session.readers.values()
        if reader.reached < replay.stop
        and reader.lag
        and reader.qos >= subscription.qos  # otherwise the client gets the message twice, as section 3.3.4 allows
        and not reader.only_live
        and reader.topic_filter != subscription.topic_filter
    ]
