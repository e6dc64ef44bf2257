"""The MessageStore against dictionaries: whatever happens, queues, retained messages and sessions are what they hold.

Kills are copies of the folder without closing it; the copy is opened and the original forgotten.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lightqueue.message_store import MessageStore
from lightqueue.queues import table
from lightqueue.queues.matching import has_wildcard
from lightqueue.queues.table import level_of
from store.log.api import OpenLog
from store.log.opening import open_log
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute
from store.state import retained
from store.state.changes import (
    Change,
    Progress,
    QueueDropped,
    Sent,
    SessionClosed,
    SessionEnded,
    SessionOpened,
    Subscribed,
    SubscriptionState,
    Unsubscribed,
    WillFired,
    WillState,
)
from store.topics import matches
from tests.support.plain_log import open_plain_log
from tests.support.stores import change, crash_copy, read_all, small, write_step

TOPICS = ("a", "a/b", "a/c", "b/c", "b/c/d", "/a", "$s/a")
FILTERS = (*TOPICS[:4], "a/#", "b/#", "#", "+/c", "b/+", "+/+/d", "a/+/#")
CLIENTS = ("one", "two", "three")
WILL = WillState("b/c", b"gone", 1, False, b"", 5)

topics = st.sampled_from(TOPICS)
filters = st.sampled_from(FILTERS)
clients = st.sampled_from(CLIENTS)
expiries = st.sampled_from((0, 60, 3600))
packet_ids = st.integers(1, 4)


@dataclass
class ModelSession:
    acked: int
    expiry: int = 0
    connected: bool = True
    will: WillState | None = None
    subscriptions: dict[str, tuple[int, int]] = field(default_factory=dict)  # filter → QoS, since
    sent: dict[int, Sent] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)
    owed: list[Sent] = field(default_factory=list)

    def held(self) -> set[str]:
        return {name for name, (qos, _) in self.subscriptions.items() if qos and self.expiry}


@dataclass
class Model:
    messages: list[tuple[str, int]] = field(default_factory=list)  # topic, log_offset
    retained: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, ModelSession] = field(default_factory=dict)
    filter_queues: dict[str, int] = field(default_factory=dict)  # filter → number of messages before its queue began

    def held(self) -> set[str]:
        return set().union(*(session.held() for session in self.sessions.values()))

    def make_queues(self) -> None:
        """A wildcard filter other than a first level gets a queue when it is first held."""
        for name in self.held():
            if has_wildcard(name) and level_of(name) is None:
                self.filter_queues.setdefault(name, len(self.messages))

    def expected(self, topic_filter: str) -> list[int]:
        """log_offsets that a filter's stored queue holds."""
        start = self.filter_queues.get(topic_filter, 0)
        return [log_offset for topic, log_offset in self.messages[start:] if matches(topic_filter, topic)]


class StoreMachine(RuleBasedStateMachine):
    opens: OpenLog = staticmethod(open_log)

    @initialize(
        cached=st.sampled_from((1, 4, 1000)),
        flush=st.sampled_from(("async", "sync", "buffered")),
        step_cost=st.sampled_from((1, 3, 1000)),
    )
    def open(self, cached: int, flush: str, step_cost: int) -> None:
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(table, "STEP_COST", step_cost)
        self.patched.setattr(retained, "KEYS_PER_STEP", step_cost)
        self.root = Path(tempfile.mkdtemp())
        self.folders = 0
        self.options = {"cached_topics": cached, "flush": flush, "segment_bytes": 64 << 10}
        self.model = Model()
        self.data = self.root / "data-0"
        self.store = self.opened()

    def opened(self) -> MessageStore:
        return MessageStore(small(self.data, **self.options), opens=self.opens)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.restart()
            self.the_same_outline()
            self.the_same_queues()
            self.store.close()
            shutil.rmtree(self.root)
            self.patched.undo()

    # --- messages

    @rule(topic=topics, count=st.integers(1, 5), size=st.sampled_from((0, 1, 9000)), retain=st.booleans())
    def publish(self, topic: str, count: int, size: int, retain: bool) -> None:
        batch = RecordBatch()
        flags = RecordFlag.RETAIN if retain else 0
        for _ in range(count):
            batch.append(RecordType.MESSAGE, bytes(size), topic=topic.encode(), flags=flags)
        at = self.store.append(batch)
        for _ in range(count):
            self.model.messages.append((topic, at))
            if retain and size:
                self.model.retained[topic] = at
            elif retain:
                self.model.retained.pop(topic, None)
            at += self.store.record(at).length

    @rule(client=clients, topic=topics, packet_id=packet_ids)
    def publish_qos2(self, client: str, topic: str, packet_id: int) -> None:
        batch = RecordBatch()
        attributes = encode_attribute(Attribute.PACKET_ID, packet_id.to_bytes(2, "little"))
        batch.append(1, b"2", topic=topic.encode(), client_id=client.encode(), attributes=attributes, flags=2)
        self.model.messages.append((topic, self.store.append(batch)))
        if client in self.model.sessions:
            self.model.sessions[client].received.add(packet_id)

    # --- sessions

    @rule(client=clients, clean=st.booleans(), expiry=expiries, will=st.sampled_from((None, WILL)))
    def open_session(self, client: str, clean: bool, expiry: int, will: WillState | None) -> None:
        at = change(self.store, SessionOpened(client, clean, expiry, will))
        if clean:
            self.model.sessions.pop(client, None)
        session = self.model.sessions.setdefault(client, ModelSession(at))
        session.expiry, session.will, session.connected = expiry, will, True
        self.model.make_queues()

    @rule(client=clients, expiry=expiries, keep_will=st.booleans())
    def close_session(self, client: str, expiry: int, keep_will: bool) -> None:
        change(self.store, SessionClosed(client, expiry, keep_will))
        session = self.model.sessions.get(client)
        if session is not None:
            session.expiry, session.connected = expiry, False
            if not keep_will:
                session.will = None
                if not expiry:
                    del self.model.sessions[client]
        self.model.make_queues()

    @rule(client=clients)
    def end_session(self, client: str) -> None:
        change(self.store, SessionEnded(client))
        self.model.sessions.pop(client, None)

    @rule(client=clients)
    def fire_will(self, client: str) -> None:
        change(self.store, WillFired(client))
        session = self.model.sessions.get(client)
        if session is not None:
            session.will = None
            if not session.connected and not session.expiry:
                del self.model.sessions[client]

    @rule(client=clients, topic_filters=st.lists(filters, min_size=1, max_size=3), qos=st.integers(0, 2))
    def subscribe(self, client: str, topic_filters: list[str], qos: int) -> None:
        subscriptions = [SubscriptionState(name, qos) for name in topic_filters]
        at = change(self.store, Subscribed(client, subscriptions))
        session = self.model.sessions.get(client)
        for name in topic_filters if session is not None else ():
            assert session is not None
            old_qos, since = session.subscriptions.get(name, (0, at))
            session.subscriptions[name] = (qos, since if old_qos else at)
        self.model.make_queues()

    @rule(client=clients, topic_filters=st.lists(filters, min_size=1, max_size=3))
    def unsubscribe(self, client: str, topic_filters: list[str]) -> None:
        change(self.store, Unsubscribed(client, topic_filters))
        session = self.model.sessions.get(client)
        for name in topic_filters if session is not None else ():
            assert session is not None
            session.subscriptions.pop(name, None)

    @precondition(lambda self: self.model.messages)
    @rule(client=clients, data=st.data(), packet_id=packet_ids, other_id=packet_ids, owed=st.booleans())
    def progress(self, client: str, data: st.DataObject, packet_id: int, other_id: int, owed: bool) -> None:
        log_offset = data.draw(st.sampled_from(self.model.messages))[1]
        acked = data.draw(st.sampled_from((0, log_offset, self.store.end)))
        sent = Sent(packet_id, log_offset, 2, owed, owed=owed)
        self.record_progress(client, Progress(client, acked, [sent], released=[packet_id], received_done=[other_id]))
        self.record_progress(client, Progress(client, completed=[other_id]))

    @precondition(lambda self: self.model.messages)
    @rule(client=clients, data=st.data())
    def owe(self, client: str, data: st.DataObject) -> None:
        drawn = data.draw(st.lists(st.sampled_from(self.model.messages), min_size=1, max_size=3))
        owed = [Sent(0, log_offset, 1, True, owed=True) for _, log_offset in drawn]
        self.record_progress(client, Progress(client, owed=owed))

    def record_progress(self, client: str, progress: Progress) -> None:
        change(self.store, progress)
        session = self.model.sessions.get(client)
        if session is None:
            return
        session.owed += progress.owed
        session.sent |= {sent.packet_id: sent for sent in progress.sent}
        for paid in (sent.log_offset for sent in progress.sent if sent.owed):
            first = next((owed for owed in session.owed if owed.log_offset == paid), None)
            if first is not None:
                session.owed.remove(first)
        session.released |= set(progress.released)
        session.received -= set(progress.received_done)
        for packet_id in progress.completed:
            session.released.discard(packet_id)
            sent = session.sent.pop(packet_id, None)
            if sent is not None and not sent.owed:
                session.done.add(sent.log_offset)
        if progress.acked > session.acked:
            session.acked = progress.acked
            session.done = {log_offset for log_offset in session.done if log_offset >= session.acked}

    @rule(topic_filter=filters)
    def come_and_go(self, topic_filter: str) -> None:
        """A session that leaves its filter's queue to nobody."""
        self.open_session("passing", True, 60, None)
        self.subscribe("passing", [topic_filter], 1)
        self.end_session("passing")

    @rule(restart=st.booleans())
    def drop_unheld(self, restart: bool) -> None:
        unheld = set(self.store.queues.held.unheld())
        changes: list[Change] = [QueueDropped(sorted(unheld))]
        change(self.store, *changes)
        for name in unheld:
            del self.model.filter_queues[name]
        if restart:
            self.restart()

    # --- the store

    @rule(flush=st.booleans())
    def write_index(self, flush: bool) -> None:
        self.store.write_index()
        if flush:
            self.store.index.flush()

    @rule()
    def write_step(self) -> None:
        """The index falls behind, and a kill finds it so."""
        self.store.log.commit()
        write_step(self.store, self.store.end)
        self.store.index.flush()

    @precondition(lambda self: self.model.retained)
    @rule(data=st.data(), stored=st.booleans())
    def remove_retained(self, data: st.DataObject, stored: bool) -> None:
        if stored:
            self.store.write_index()
        self.publish(data.draw(st.sampled_from(sorted(self.model.retained))), 1, 0, True)

    @rule()
    def tick(self) -> None:
        self.store.tick()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.opened()

    @rule()
    def kill(self) -> None:
        self.store.log.commit()  # `buffered` may lose the rest, and then the model would have to forget it
        killed = self.store
        self.folders += 1
        self.data = crash_copy(self.data, self.root / f"data-{self.folders}")
        self.store = self.opened()
        killed.close()

    # --- comparing

    @invariant()
    def the_same_outline(self) -> None:
        if not hasattr(self, "store"):
            return
        for topic_filter in self.model.filter_queues:
            queue = self.store.queues.stored(topic_filter)
            assert queue is not None
            assert queue.next_offset == len(self.model.expected(topic_filter))
        assert set(self.store.queues.held.unheld()) == set(self.model.filter_queues) - self.model.held()
        self.same_retained()
        self.same_sessions()

    @rule()
    def the_same_queues(self) -> None:
        for topic_filter in (*TOPICS, "a/#", "b/#", "/#", "$s/#", *self.model.filter_queues):
            self.same_queue(topic_filter)

    def same_queue(self, topic_filter: str) -> None:
        queues = self.store.queues
        queue = queues.stored(topic_filter)
        assert queue is not None
        expected = self.model.expected(topic_filter)
        assert queue.next_offset == len(expected)
        for start in {0, len(expected) // 2, max(0, len(expected) - 1)}:
            assert [record.log_offset for record in read_all(self.store, queue, start, 3)] == expected[start:]
        for i, log_offset in enumerate(expected):
            assert queues.log_offset_at(queue, i) == log_offset
            assert queues.position_of(queue, log_offset) == i
        assert queues.position_of(queue, self.store.end) == len(expected)
        assert queues.first_offset(queue) == 0
        times = [self.store.record(log_offset).timestamp_ms for log_offset in expected]
        for timestamp_ms in times:
            assert queues.position_at(queue, timestamp_ms) == times.index(timestamp_ms)

    def same_retained(self) -> None:
        retained = self.store.retained
        assert [(topic.decode(), at) for topic, at in retained.below(b"")] == sorted(
            self.model.retained.items(), key=lambda item: item[0].replace("/", "\0")
        )
        assert dict(retained.below(b"b/")) == {
            topic.encode(): at for topic, at in self.model.retained.items() if topic.startswith("b/")
        }
        for topic in TOPICS:
            assert retained.get(topic.encode()) == self.model.retained.get(topic)

    def same_sessions(self) -> None:
        found = {}
        for state in self.store.sessions:
            subscriptions = {name: (sub.qos, sub.since) for name, sub in state.subscriptions.items()}
            found[state.client_id] = ModelSession(
                state.acked,
                state.session_expiry_interval,
                state.connected,
                state.will,
                subscriptions,
                state.sent,
                state.released,
                state.done,
                state.received,
                state.owed,
            )
        assert found == self.model.sessions


class PlainStoreMachine(StoreMachine):
    """On a second log."""

    opens = staticmethod(open_plain_log)


TestPlainLog = PlainStoreMachine.TestCase
TestPlainLog.settings = settings(
    max_examples=settings().max_examples // 5, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=2 * settings().max_examples // 5, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
