"""Moving messages from queues to connections: subscribers that are up to date share one read; one that lags pulls."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal, NamedTuple

from gateway.delivery.exchange import Exchange
from gateway.delivery.expander import EXPANDED_BYTES, Expander
from gateway.delivery.outrun import Outrun
from gateway.delivery.replays import COMPRESSED, NO_STOP, Replays
from gateway.mqtt._mqtt import (
    BLOCKED,
    DONE,
    SESSION,
    Reader,
    fan_out,
    fell_behind,
    lag_behind,
    nearest,
    places_of,
    readers_of,
    stand_at,
    taking_from,
    with_more,
)
from gateway.sessions.core import Core
from gateway.sessions.session import NONE, Session
from lightqueue.queues._queues import LIVE, Queue
from notify.steps import Steps, in_steps
from store.namespaces import is_servers
from store.records._records import Records

RANGE_RECORDS = 8_192
RANGE_BYTES = 1 << 20
ROUNDS_PER_TURN = 4
MANY_READERS = 16  # lagging readers of a session; if it has more, one call reads their ranges, with fewer records each
LEAST_MERGED = 4  # least number of readers that are merged; more if the window has room for more,
MOST_MERGED = 64  # and at most so many
MANY_QUEUES = (
    256  # if more queues grew, lagging sessions pull in the next turn; a session that reads more pulls once a turn
)
FAN_OUT_S = 0.001  # time in a turn for the queues that grew; the rest of them come in the next turn
QUEUES_BY_CLOCK = 16  # queues between two looks at the clock
CATCH_UP_S = 0.002  # time in a turn for all lagging sessions together, however often they pull in it
HISTORY_S = 0.0002  # part of it for sessions that are sent history by pages; one of them gets a page in any case
EXPANDED_RANGES = 4  # decompressed ranges that are kept for other readers, of 1 MiB or one message each
REPORTED_AT_ONCE = 256  # queues that one report_positions() reports to the store,
REPORTED_SHARE = 16  # and 1/16 of all others that wait for it
REPORTED_PER_STEP = 64  # queues in one step of it,
REPORTED_READERS = 1_000  # or fewer, if they have so many readers together: some 0.2 ms
NOBODY: frozenset[Session] = frozenset()


class MergedDelivery(NamedTuple):
    """Messages that were delivered from many readers of a session, merged."""

    outcome: int  # the result of Link.deliver()
    readers: list[Reader]
    ranges: list[Records]
    stop: int  # log_offset from which on readers that were not merged have messages too


class Deliverer:
    """Owner of the readers of each queue in this gateway."""

    def __init__(self, core: Core, exchange: Exchange, expander: Expander) -> None:
        self._soon = soon = core.scheduler.soon
        self._turn = core.turn
        self._queues, self._sessions, self._history = core.store.queues, core.store.sessions, core.store.history
        self._settings = core.settings
        self.replays = Replays(core, exchange, expander, self.room)
        self._exchange = exchange
        self._expander = expander
        self._moved: set[Queue] = set()  # LIVE queues whose readers may have come further since report_positions()
        self._to_report = 0  # number of these queues that are left for this report_positions()
        self._reporting = Steps(self._report_some, soon)
        self.of_server: dict[Reader, None] = {}  # readers of topics that servers write, which come from no queue
        self._ranges: dict[tuple[Queue, int], Records] = {}
        self._later: list[Queue] = []  # queues that grew and found no time in their turn; the oldest first
        self._lagging: dict[Session, set[Reader]] = {}  # readers whose queues have more; some may have caught up
        self._behind: set[Session] = set()  # sessions that have more to read and room for it
        self._replaying: dict[Session, None] = {}  # sessions that are sent history: in turn, after the others
        self._puts_off = self._has_put_off = False  # pulls are put off: in this turn; in the turn before
        self._pulled_s = 0.0  # time that was spent on pulls in this turn
        self._waiting_safe: set[Session] = set()  # sessions that stand at a QoS 2 message that was not safe yet
        self._known_safe = 0  # log_offset before which everything was safe, the last time
        self._waiting_read: dict[Queue, set[Session]] = {}  # sessions that wait for an answer of the store
        self._expanded = 0  # decompressed ranges so far
        self._outrun = Outrun()
        self.dropped = 0
        self.transient = 0  # subscriptions that end with their connection
        self.durable = 0  # other subscriptions of connected clients
        self.store_reads = 0
        self.shared_reads = 0

    # --- readers

    def add(self, reader: Reader) -> None:
        queue = reader.queue
        if queue.readers is None:
            queue.readers = [reader]
        else:
            queue.readers.append(reader)
        if is_servers(reader.topic_filter):
            self.of_server[reader] = None
        self.transient += _is_transient(reader)
        self.durable += _is_durable(reader)
        self._fell_behind([reader])

    def remove(self, reader: Reader) -> None:
        link, reader.link = reader.link, None
        self._take_out(reader, link.durable)

    def _take_out(self, reader: Reader, is_durable: bool) -> None:
        """Remove a reader, which has no link any more, from its queue."""
        queue = reader.queue
        assert queue.readers is not None
        queue.readers.remove(reader)
        self.of_server.pop(reader, None)
        if not reader.only_live:
            self.durable -= is_durable
            self.transient -= not is_durable
        if reader.session in self._lagging:
            self._lagging[reader.session].discard(reader)
        if not queue.readers:
            queue.readers = None
            self._moved.discard(queue)
            self._waiting_read.pop(queue, None)
        else:
            self._may_have_moved(queue)
        self._queues.unfollow(queue)

    def stop(self, session: Session) -> None:
        """Stop the readers of a session whose connection has ended."""
        readers = list(session.readers.values())
        for reader in readers:
            reader.link = None  # at once: nothing more is sent; what else there is to do may take several turns
        is_durable = session.connection.durable
        session.readers = NONE
        session.replays = ()
        self._lagging.pop(session, None)
        self._outrun.is_through(session)
        self._behind.discard(session)
        self._replaying.pop(session, None)
        self._waiting_safe.discard(session)
        if readers:
            in_steps(self._take_out_all(readers, is_durable), self._soon)

    def _take_out_all(self, readers: list[Reader], is_durable: bool) -> Iterator[None]:
        for reader in readers:
            self._take_out(reader, is_durable)
            yield

    @property
    def pending(self) -> set[Session]:
        """Sessions that have more to read and are ready to take it; they wait for the gateway or the store."""
        later = {reader.session for reader in readers_of(self._later)}
        return self._behind.union(self._waiting_safe, self._replaying, later, *self._waiting_read.values())

    # --- per turn

    def grew(self, queues: Iterable[Queue]) -> None:
        """Deliver what is new in these queues, and what became safe."""
        if not self._sessions.are_ours:
            self._fell_behind(readers_of([*self._later, *queues]))
            self._later = []
            return
        queues = list(queues)
        self._puts_off = self._puts_off or (len(queues) > MANY_QUEUES and not self._has_put_off)
        if len(queues) > MANY_READERS and not self._waiting_read:
            queues = lag_behind(queues, self._lagging, self._behind)
        if self._later:
            queues = list(dict.fromkeys(chain(self._later, queues)))
            self._later = []
        elif self._turn.is_long and len(queues) > MANY_QUEUES:
            queues, self._later = [], queues
        safe = self._queues.safe
        if safe > self._known_safe:
            self._known_safe = safe
            self._behind |= self._waiting_safe
            self._waiting_safe.clear()
        ends_s = time.perf_counter() + FAN_OUT_S
        if self._waiting_read:
            for queue in queues:
                self._behind |= self._waiting_read.pop(queue, NOBODY)
        for number, queue in enumerate(queues):
            readers = queue.readers
            if not readers:
                continue
            if len(readers) == 1 and not readers[0].alone:  # it goes out merged with what its session's others have
                self._fell_behind(readers)
                continue
            self._fell_behind(self._fan_out(queue, readers, safe))
            if not number % QUEUES_BY_CLOCK and time.perf_counter() >= ends_s:
                self._later = queues[number + 1 :]
                self._puts_off = not self._has_put_off
                self._pulled_s += FAN_OUT_S
                break
        if not self._puts_off:
            self._catch_up()
        else:
            self._ranges.clear()  # before anything more is appended

    def _fan_out(self, queue: Queue, readers: list[Reader], safe: int) -> Iterable[Reader]:
        """Deliver what is new in a queue; returns the readers that have more to read."""
        position = taking_from(readers)
        records = self._range(readers[0].session, queue, position) if position is not None else None
        if isinstance(records, Records):
            readers = fan_out(readers, records, safe)
            self._may_have_moved(queue)
        return readers

    def _fell_behind(self, readers: Iterable[Reader]) -> None:
        fell_behind(readers, self._lagging, self._behind)

    def _may_have_moved(self, queue: Queue) -> None:
        if queue.kind == LIVE:
            self._moved.add(queue)

    def room(self, sessions: Iterable[Session]) -> None:
        """Deliver more to these sessions: their windows or buffers have room again."""
        self._behind.update(sessions)

    def catch_up(self) -> None:
        """Call at the end of a turn: lagging sessions pull, unless that is put off to the next turn."""
        self._has_put_off, self._puts_off = self._puts_off, False
        if not self._has_put_off:
            self._catch_up()
        self._pulled_s = 0.0

    def _catch_up(self) -> None:
        """Let lagging sessions pull: each for a bounded number of rounds, all for a bounded time."""
        if not self._sessions.are_ours:
            return
        if self._behind:
            self._pull_some()
        if self._replaying:
            self._replay_some()
        self._ranges.clear()

    def _pull_some(self) -> None:
        """Let sessions pull until CATCH_UP_S of this turn is used up; at least one session pulls if time is left."""
        if self._pulled_s >= CATCH_UP_S:
            return
        began_s = time.perf_counter()
        ends_s = began_s + CATCH_UP_S - self._pulled_s
        behind, self._behind = self._behind, set()
        while behind:
            session = behind.pop()
            if session.replays:
                self._replaying[session] = None
            elif self._pull(session, ends_s):
                self._behind.add(session)
            if time.perf_counter() >= ends_s:
                self._behind |= behind
                break
        self._pulled_s += time.perf_counter() - began_s

    def _replay_some(self) -> None:
        """Send pages of history for a small part of the turn, so that other clients hardly wait for it."""
        ends_s = time.perf_counter() + HISTORY_S
        for session in list(self._replaying):
            del self._replaying[session]
            if self._pull(session, ends_s):
                self._behind.add(session)
            if time.perf_counter() >= ends_s:
                return

    @property
    def has_more(self) -> bool:
        """True if some session can go on without waiting for the store."""
        return bool(self._behind or self._replaying or self._later) and self._sessions.are_ours

    def _pull(self, session: Session, ends_s: float) -> bool:
        """Deliver from all of a session's queues, merged. True if the session has more and can go on."""
        queues = 0
        for number in range(ROUNDS_PER_TURN):
            if number and (queues > MANY_QUEUES or time.perf_counter() >= ends_s):
                break
            link = session.link
            if link is not None and link.is_full():
                link.flush()
            if link is None or link.paused or link.closing or link.is_owing() or not session.reading:
                return False
            if session.backlog:
                if not self._exchange.go_on(session):
                    return False
                continue
            if session.listings:
                return False
            if session.replays:
                outcome = self.replays.go_on(session)
                if outcome == DONE:
                    return True  # a page in a turn
                if outcome == BLOCKED and not session.inflight.blocked:
                    self._waiting_safe.add(session)
                return False
            pending = self._pending(session)
            if not pending:
                return False
            queues, stop = len(pending), NO_STOP
            if queues <= MANY_READERS:
                ranges = self._ranges_of(pending)
                if ranges is None:
                    return False
                outcome = link.deliver(pending, ranges, self._queues.safe, stop)
            else:
                most = MOST_MERGED if number else max(LEAST_MERGED, session.inflight.room())
                merged = self._deliver_nearest(session, pending, min(most, MOST_MERGED), ends_s)
                if merged is None:
                    return False
                outcome, pending, ranges, stop = merged
                queues = len(pending)
            if outcome == SESSION and not self._exchange.send_next(session, pending, ranges, stop):
                return False
            if outcome == BLOCKED:
                if not session.inflight.blocked:
                    self._waiting_safe.add(session)
                return False
        return True

    def _pending(self, session: Session) -> list[Reader]:
        """The readers of a session whose queues have more."""
        lagging = self._lagging.get(session, ())
        pending = with_more(lagging)
        if not pending:
            self._lagging.pop(session, None)
            self._outrun.is_through(session)
        elif len(pending) < len(lagging):
            self._lagging[session] = set(pending)
        return pending

    def _deliver_nearest(
        self, session: Session, pending: list[Reader], most: int, ends_s: float
    ) -> MergedDelivery | None:
        """Deliver from `most` of a session's readers, merged: the ones whose next messages are the oldest.

        Each range is short, so the next one is read as soon as one is used up. None: the session waits for a range.
        """
        readers, stop = nearest(pending, most)
        most_lag = self._settings.qos0_lag_messages
        self._outrun.goes_on(session, readers[:MANY_READERS], most_lag, time.perf_counter())
        ranges = self._many_ranges_of(readers)
        if ranges is None:
            return None
        link, safe = session.connection, self._queues.safe
        outcome = link.deliver(readers, ranges, safe, stop)
        while outcome == DONE and self._read_on(readers, ranges, ends_s):
            outcome = link.deliver(readers, ranges, safe, stop)
        return MergedDelivery(outcome, readers, ranges, stop)

    def _read_on(self, readers: list[Reader], ranges: list[Records], ends_s: float) -> bool:
        """Replace ranges that are used up by the next ones. False if none is, or there is no time or room left."""
        used_up = [i for i, records in enumerate(ranges) if readers[i].position >= records.next and readers[i].lag]
        link = readers[0].link
        if not used_up or link is None or link.is_full() or time.perf_counter() >= ends_s:
            return False
        found = self._many_ranges_of([readers[i] for i in used_up])
        for i, records in zip(used_up, found or (), strict=False):
            ranges[i] = records
        return found is not None

    def _ranges_of(self, readers: list[Reader]) -> list[Records] | None:
        """The next range of each of a session's few readers; None if the session has to wait for one of the ranges."""
        ranges = []
        most_lag, share = self._settings.qos0_lag_messages, len(readers)
        self._outrun.goes_on(readers[0].session, readers, most_lag, time.perf_counter())
        for reader in readers:
            queue, position = reader.queue, reader.position
            if reader.qos == 0 and reader.lag > most_lag:
                self.dropped += reader.lag - 1
                position = reader.position = queue.next_offset - 1
            records = self._range(reader.session, queue, position, share)
            if records is None:
                self._waiting_read.setdefault(queue, set()).add(reader.session)
            if not isinstance(records, Records):
                continue
            if records.first > position:
                if self._resumes(reader, records):
                    return None
                reader.position = records.first
            if queue.kind == LIVE:
                self._moved.add(queue)
            ranges.append(records)
        return ranges if len(ranges) == share else None

    def _resumes(self, reader: Reader, records: Records) -> bool:
        """Begin a replay from the tier, if there is one, of messages before a range that retention has dropped.

        Returns whether a replay began. At QoS 0 it begins only for a reader that was replaying: other slow clients miss
        these messages.
        """
        begins = records.log_offset(0) if records.count else self._queues.end
        if reader.only_live or reader.reached >= begins:
            return False
        if not reader.qos and (not reader.since or reader.reached != reader.since):
            return False
        if not self._history.may_have(reader.reached):
            return False
        start = reader.reached
        reader.stand_at(records.first, begins)
        if not reader.qos or not records.count:
            reader.since = begins  # retention may pass that place as well, and what the queue gets late is in the range
        self.replays.begin_for(reader, start)
        return True

    @property
    def is_behind(self) -> bool:
        """True if a client that does read lags so far that messages of QoS 0 would soon be dropped for it."""
        return bool(self._outrun) and self._outrun.is_any(time.perf_counter())

    def _many_ranges_of(self, readers: list[Reader]) -> list[Records] | None:
        """The next range of each of these readers, in one call; None if the session has to wait for one of the ranges.

        One call, since a message may match thousands of subscriptions of one session.
        """
        share = len(readers)
        queues, positions, dropped = places_of(readers, self._settings.qos0_lag_messages)
        self.dropped += dropped
        found = self._queues.read_many(queues, positions, max(1, RANGE_RECORDS // share), RANGE_BYTES)
        self.store_reads += share
        ranges = [records for records in found if records is not None]
        if len(ranges) < share:
            for reader, records in zip(readers, found, strict=True):
                if records is None:
                    self._waiting_read.setdefault(reader.queue, set()).add(reader.session)
            return None
        behind = [i for i, records in enumerate(ranges) if records.first > positions[i]]
        resumed = [self._resumes(readers[i], ranges[i]) for i in behind]
        if any(resumed):
            return None
        is_compressed = stand_at(readers, ranges, self._moved)
        return [self._as_published(records, share) for records in ranges] if is_compressed else ranges

    def _range(self, session: Session, queue: Queue, position: int, share: int = 1) -> Records | Literal[False] | None:
        """The next range of a queue, from this turn's cache or the store. `share`: number of ranges held at a time.

        None: the store will answer later. False: the first payload is being decompressed; accept_more() tells the
        session when that is done.
        """
        records = self._ranges.get((queue, position))
        if records is not None:
            self.shared_reads += 1
            return records
        records = self._queues.read(queue, position, RANGE_RECORDS, RANGE_BYTES)
        self.store_reads += 1
        if records is None:
            return None
        if records.flags & COMPRESSED:
            found = self._expander.for_session(session, records, EXPANDED_BYTES // share)
            if found is None:
                return False
            self._note_expanded(found is not records)
            records = found
        self._ranges[queue, position] = records
        return records

    def _as_published(self, records: Records, share: int) -> Records:
        plain = self._expander.as_published(records, EXPANDED_BYTES // share)
        self._note_expanded(plain is not records)
        return plain

    def _note_expanded(self, is_copy: bool) -> None:
        """Count a decompressed range: such ranges are copies, so only EXPANDED_RANGES of a turn are kept for others."""
        if is_copy:
            self._expanded += 1
            if self._expanded % EXPANDED_RANGES == 0:
                self._ranges.clear()

    def report_positions(self) -> None:
        """Tell the store which entries readers still need of queues that live only in memory. Call now and then."""
        self._to_report = REPORTED_AT_ONCE + len(self._moved) // REPORTED_SHARE
        self._reporting.start()

    def _report_some(self) -> bool:
        """Report some of the moved queues. True if there are more to report."""
        floors: list[tuple[Queue, int]] = []
        looked_at = 0
        while self._moved and len(floors) < REPORTED_PER_STEP and looked_at < REPORTED_READERS:
            queue = self._moved.pop()
            if queue.readers:
                looked_at += len(queue.readers)
                floors.append((queue, min([reader.position for reader in queue.readers])))
        self._queues.needed_from(floors)
        self._to_report -= len(floors)
        return bool(self._moved) and self._to_report > 0


def _is_transient(reader: Reader) -> bool:
    """True if the reader's subscription ends with its connection, so the store does not have it."""
    return not reader.link.durable and not reader.only_live


def _is_durable(reader: Reader) -> bool:
    return reader.link.durable and not reader.only_live
