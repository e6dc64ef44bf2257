"""A large Publish is applied in steps: what is told and answered meanwhile, in which order, and what a kill leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightqueue import message_store
from lightqueue.message_store import MessageStore
from lightqueue.upkeep import applying
from notify.local.hub import Hub
from notify.server.applying import ApplyingSteps
from store.errors import IndexFailed
from store.records._records import RecordBatch
from store.records.records import Record, RecordType
from store.wire.client_messages import Publish, Published, Scan, Scanned, Wait
from store.wire.messages import Append, Appended, Follow, Following, Grew, Ping, Pong, Pushed, Read, Role
from tests.support.store_protocol_bench import NotedUpkeep, Talk, WireBench, message
from tests.support.stores import crash_copy, small

COUNT = 20
FILTERS = ("load/+", "load/b", "load/#", "+/b", "#")


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message at a time."""
    monkeypatch.setattr(message_store, "FIRST_WORK", 1)
    monkeypatch.setattr(applying.Applying.step, "__defaults__", (1,))


@pytest.fixture
def bench(tmp_path: Path) -> WireBench:
    return WireBench(tmp_path / "data")


def records(count: int = COUNT) -> bytes:
    batch = RecordBatch()
    for number in range(count):
        batch.append(RecordType.MESSAGE, b"%d" % number, topic=b"load/b")
    return bytes(batch)


def follow(talk: Talk) -> list[int]:
    found = []
    for topic_filter in FILTERS:
        answer = talk.call(Follow(topic_filter, False, -1, False))
        assert isinstance(answer, Following)
        found.append(answer.queues[0].ref)
    return found


def apply_all(bench: WireBench) -> None:
    while bench.store.applying.step():
        pass
    bench.hub.tell_changes()


def topic_end(store: MessageStore) -> int:
    return store.queues.topic_queue(b"load/b").next_offset


def test_the_end_of_the_log_is_what_is_in_the_queues(bench: WireBench) -> None:
    client = bench.connect("client", Role.CLIENT)
    start = bench.store.end
    request = client.ask(Publish(1, Wait.STORED), records())
    ends = [bench.store.end]
    assert topic_end(bench.store) == 1
    while bench.store.applying.step():
        ends.append(bench.store.end)
        bench.store.write_index()
        assert bench.store.index.applied_offset == ends[-1] >= bench.store.safe
        assert client.answer(request) is None
    assert start < ends[0]
    assert ends == sorted(set(ends))
    assert ends[-1] < bench.store.log.end == bench.store.end
    answer = client.answer(request)
    assert isinstance(answer, Published)
    assert answer.queue_offsets == [0]
    assert topic_end(bench.store) == COUNT


def test_changes_wait_while_a_publish_is_applied_and_reads_do_not(bench: WireBench) -> None:
    client, gateway = bench.connect("client", Role.CLIENT), bench.connect("gateway")
    refs = follow(gateway)
    published = client.ask(Publish(1, Wait.STORED), records())
    behind = client.ask(Publish(2, Wait.STORED), message(b"behind", b"load/b"))
    gateway.tell(Ping())
    assert gateway.events(Pong)
    assert not gateway.events(Grew)
    assert not gateway.events(Pushed)
    other = bench.connect("reader", Role.CLIENT)
    scanned = other.call(Scan("load/b", 0, 1 << 40, 1 << 20))
    assert isinstance(scanned, Scanned)
    assert scanned.log_end == bench.store.end
    assert gateway.call(Read([(refs[0], 0)], 100, 1 << 20)) is not None  # in front of what waits
    appended = gateway.ask(Append(1), message(b"other", b"load/b"))
    after_it = gateway.ask(Read([(refs[0], 0)], 100, 1 << 20))
    assert (
        gateway.answer(appended)
        is gateway.answer(after_it)
        is client.answer(published)
        is client.answer(behind)
        is None
    )
    assert topic_end(bench.store) == 1
    apply_all(bench)
    assert isinstance(client.answer(published), Published)
    assert client.answer(behind) is None  # it is applied in steps itself
    apply_all(bench)
    second = client.answer(behind)
    assert isinstance(second, Published)
    assert second.queue_offsets == [COUNT]
    assert gateway.answer(appended) is None  # so is this
    apply_all(bench)
    assert isinstance(gateway.answer(appended), Appended)
    assert gateway.answer(after_it) is not None
    assert topic_end(bench.store) == COUNT + 2
    assert not gateway.conversation.has_unanswered
    assert not client.conversation.has_unanswered


def test_growth_is_told_once_all_is_applied(bench: WireBench) -> None:
    client, gateway = bench.connect("client", Role.CLIENT), bench.connect("gateway")
    refs = follow(gateway)
    client.ask(Publish(1, Wait.STORED), records())
    while bench.store.applying.step():
        assert not gateway.events(Grew)
        assert not gateway.events(Pushed)
    bench.hub.tell_changes()
    told = [end for grew in gateway.events(Grew) for end in grew.queues]
    assert sorted(told) == sorted((ref, COUNT) for ref in refs)


def test_a_read_meanwhile_tells_of_every_queue(bench: WireBench) -> None:
    """Of a message that is in one queue the reader knows that it is in the others."""
    client, gateway = bench.connect("client", Role.CLIENT), bench.connect("gateway")
    refs = follow(gateway)
    client.ask(Publish(1, Wait.STORED), records())
    bench.store.applying.step()
    gateway.call(Read([(refs[0], 0)], 100, 1 << 20))
    known = {ref: end for grew in gateway.events(Grew) for ref, end in grew.queues}
    assert {known.get(ref, 2) for ref in refs} == {2}


def test_a_publish_sent_again_meanwhile_is_stored_once(bench: WireBench) -> None:
    client = bench.connect("client", Role.CLIENT)
    client.ask(Publish(1, Wait.STORED), records())
    client.cut()
    again = bench.connect("client", Role.CLIENT)
    request = again.ask(Publish(1, Wait.STORED), records())
    assert again.answer(request) is None
    apply_all(bench)
    answer = again.answer(request)
    assert isinstance(answer, Published)
    assert answer.queue_offsets == [0]
    assert topic_end(bench.store) == COUNT


def test_append_during_applying_is_applied_after_it(bench: WireBench) -> None:
    client = bench.connect("client", Role.CLIENT)
    request = client.ask(Publish(1, Wait.STORED), records())
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, b"upkeep", topic=b"load/b")
    bench.store.append(batch)
    assert not bench.store.applying.left_bytes
    assert topic_end(bench.store) == COUNT + 1
    answer = client.answer(request)
    assert isinstance(answer, Published)
    assert answer.queue_offsets == [0]


def test_a_kill_in_the_middle_loses_nothing(bench: WireBench, tmp_path: Path) -> None:
    client = bench.connect("client", Role.CLIENT)
    client.ask(Publish(1, Wait.STORED), records())
    bench.store.applying.step()
    bench.store.write_index()
    assert bench.store.applying.left_bytes
    copy = MessageStore(small(crash_copy(bench.data, tmp_path / "copy")))
    try:
        queue = copy.queues.topic_queue(b"load/b")
        assert queue.next_offset == COUNT
        found = copy.read(queue, 0, 100, 1 << 20)
        assert [Record._make(found[i]).payload for i in range(found.count)] == [
            b"%d" % number for number in range(COUNT)
        ]
        assert copy.peers.get("client").sequence == 1  # type: ignore[union-attr]
    finally:
        copy.close()


def test_upkeep_comes_between_two_publishes_in_steps(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path / "data"))
    hub = Hub(store)
    turns: list[object] = []
    upkeep = NotedUpkeep(store)
    done = upkeep.left_bytes
    steps = ApplyingSteps(hub, turns.append, upkeep)
    batch = RecordBatch()
    for _ in range(3):
        batch.append(RecordType.MESSAGE, b"", topic=b"load/b")
    store.append_in_steps(batch)
    steps.tick()
    assert not done
    assert len(turns) == 1
    while turns:
        turns.pop()()  # type: ignore[operator]
    assert done == [0]
    steps.tick()
    assert done == [0, 0]
    store.close()


def test_a_step_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, with upkeep in front of it: that is what begins the process anew if its index is lost."""
    store = MessageStore(small(tmp_path / "data"))
    turns: list[object] = []
    owner = NotedUpkeep(store)
    upkeep, errors = owner.left_bytes, owner.errors
    steps = ApplyingSteps(Hub(store), turns.append, owner)

    def run() -> None:
        while turns:
            turns.pop()()  # type: ignore[operator]

    batch = RecordBatch()
    for _ in range(3):
        batch.append(RecordType.MESSAGE, b"", topic=b"load/b")
    store.append_in_steps(batch)
    with monkeypatch.context() as broken:
        broken.setattr(store.applying, "_dispatcher", _Failing(tmp_path))
        for number in (1, 2):
            steps.tick()
            run()
            assert len(errors) == number
    assert len(upkeep) == 1  # from the second one on
    assert topic_end(store) == 1
    assert store.end < store.log.end
    steps.tick()
    run()
    assert topic_end(store) == 3
    assert store.end == store.log.end
    store.close()


class _Failing:
    done = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def apply_appended(self, *_: object) -> int:
        raise IndexFailed(self._folder, "cannot be read")
