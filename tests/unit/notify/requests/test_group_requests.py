"""Consumer groups as peers see them: popping, acking, waiting, coming and going; without sockets."""

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from notify.local import polls
from notify.requests import group_requests
from notify.server import line
from store.errors import StoreFull
from store.log.commitlog import CommitLog
from store.state import groups
from store.state.group_settings import GroupSettings
from store.wire.group_messages import (
    Ack,
    ChangeInvisible,
    GroupClose,
    GroupDone,
    GroupDrop,
    GroupList,
    GroupOpen,
    GroupOpened,
    GroupReset,
    GroupsListed,
    Pop,
    Receipt,
    Reject,
)
from store.wire.messages import Failed, FailureCode, Goodbye
from tests.support.group_bench import SETTINGS, BenchConsumer, GroupBench
from tests.support.stores import payloads, publish, read_all


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GroupBench]:
    bench = GroupBench(tmp_path)
    yield bench
    bench.store.close()


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_unacknowledged_messages_come_back(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", *numbered(0, 20))
    assert one.pop(10) == numbered(0, 10)
    assert one.ack(*numbered(0, 7)) == []
    assert one.pop(5) == numbered(10, 5)
    one.stay(9)
    assert one.pop() == numbered(15, 5)
    one.stay(1)
    assert one.pop() == numbered(7, 3) + numbered(10, 5)
    assert {one.handed[each][1] for each in numbered(7, 8)} == {2}
    assert one.info().in_flight == 13


def test_stale_receipts(bench: GroupBench) -> None:
    one, two = BenchConsumer(bench, "one"), BenchConsumer(bench, "two")
    publish(bench.store, "t/1", b"a", b"b", b"c")
    assert one.pop() == [b"a", b"b", b"c"]
    one.stay(11, two)
    assert two.pop(1) == [b"a"]
    assert one.ack(b"a", b"b") == one.receipts(b"a")  # late, but nobody else has b
    assert two.ack(b"a") == []
    assert two.ack(b"a") == two.receipts(b"a")
    assert two.pop() == [b"c"]


def test_waiting_for_messages(bench: GroupBench) -> None:
    one, two = BenchConsumer(bench, "one"), BenchConsumer(bench, "two")
    asked = one.wait(), two.wait(500)
    assert (one.took(asked[0]), two.took(asked[1])) == (None, None)
    publish(bench.store, "t/1", b"a", b"b")
    bench.tick()
    assert (one.took(asked[0]), two.took(asked[1])) == ([b"a"], [b"b"])
    asked = one.wait(), two.wait(500)
    publish(bench.store, "t/1", b"c")
    bench.tick()
    assert (one.took(asked[0]), two.took(asked[1])) == ([b"c"], None)
    bench.wait(0.6)
    assert two.took(asked[1]) == []


def test_a_peer_that_is_gone_gives_back_what_it_has(bench: GroupBench) -> None:
    one, two = BenchConsumer(bench, "one"), BenchConsumer(bench, "two")
    publish(bench.store, "t/1", *numbered(0, 6))
    assert one.pop(4) == numbered(0, 4)
    assert two.pop(1) == numbered(4, 1)
    asked = two.wait()
    assert two.took(asked) == numbered(5, 1)
    asked = two.wait()
    for _ in range(12):  # one is silent for longer than its lease
        bench.wait(0.2)
        two.talk.ping()
    assert two.took(asked) == numbered(0, 4)
    three = BenchConsumer(bench, "three")
    two.talk.tell(GroupClose(two.ref))
    assert sorted(three.pop()) == numbered(0, 6)
    three.talk.tell(Goodbye("done"))
    assert BenchConsumer(bench, "four").info().in_flight == 0


def test_deliveries_that_a_consumer_who_leaves_has_not_seen_do_not_count(bench: GroupBench) -> None:
    one, two = BenchConsumer(bench, "one"), BenchConsumer(bench, "two")
    publish(bench.store, "t/1", b"a", b"b")
    assert one.pop(1) == [b"a"]
    seen = one.handed[b"a"][0]
    assert one.pop(1) == [b"b"]
    one.talk.tell(GroupClose(one.ref, seen))
    assert sorted(two.pop(2)) == [b"a", b"b"]
    assert (two.handed[b"a"][1], two.handed[b"b"][1]) == (2, 1)


def test_retries_and_dead_letters(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", b"a", b"b")
    assert one.pop() == [b"a", b"b"]
    assert one.reject(b"a") == []
    assert one.reject(b"b", dead="cannot be read") == []
    assert one.pop() == []
    assert one.info().retries == 1
    one.stay(1)
    assert one.pop() == [b"a"]
    assert one.reject(b"a") == []
    one.stay(1)
    assert one.pop() == []
    one.stay(1)
    assert one.pop() == [b"a"]
    assert one.handed[b"a"][1] == 3
    one.stay(11)
    assert one.pop() == []
    assert payloads(bench.store, "$dead/g/t/1") == [b"b", b"a"]
    info = one.info()
    assert (info.dead_letters, info.lag, info.in_flight, info.retries) == (2, 0, 0, 0)
    queue = bench.store.queues.stored("$dead/#")
    assert queue is not None
    found = read_all(bench.store, queue)[0]
    assert b"penstock-reason\x00\x0ecannot be read" in found.properties
    assert b"penstock-deliveries\x00\x011" in found.properties
    assert b"penstock-topic\x00\x03t/1" in found.properties


def test_messages_given_back_unseen_do_not_count_as_delivered(bench: GroupBench) -> None:
    publish(bench.store, "t/1", *(b"%d" % number for number in range(2)))
    consumer, other = BenchConsumer(bench, "c"), BenchConsumer(bench, "other")
    for _ in range(3 * SETTINGS.max_deliveries):
        assert consumer.pop() == [b"0", b"1"]
        receipts = consumer.receipts(b"0", b"1")
        assert consumer.settled(consumer.talk.ask(Reject(consumer.ref, receipts, 0, "", unseen=True))) == []
        other.talk.ping()
    assert [each[1] for each in consumer.handed.values()] == [1, 1]
    assert consumer.info().dead_letters == 0
    waiting = consumer.wait()
    assert consumer.took(waiting) == [b"0", b"1"]
    waiting = consumer.wait()
    consumer.talk.tell(GroupClose(consumer.ref))
    assert consumer.took(waiting) == []  # whoever waits for messages and leaves is answered
    assert other.pop() == [b"0", b"1"]


def test_messages_given_back_unseen_do_not_answer_an_earlier_request(bench: GroupBench) -> None:
    """It would give them back again, and others would have what follows them first."""
    publish(bench.store, "t/1", *(b"%d" % number for number in range(300)))
    leaving, other = BenchConsumer(bench, "leaving"), BenchConsumer(bench, "other")
    while leaving.pop():
        pass
    asked, waiting = leaving.wait(), other.wait()
    found = [b"%d" % number for number in range(300)]
    receipts = leaving.receipts(*found)
    assert leaving.settled(leaving.talk.ask(Reject(leaving.ref, receipts, 0, "", unseen=True))) == []
    assert leaving.took(asked) == []
    came = other.took(waiting) or []
    while more := other.pop(1_000):
        came += more
    assert came == found


def test_a_longer_invisible_time(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", b"a", b"b")
    one.pop()
    assert one.settled(one.talk.ask(ChangeInvisible(one.ref, one.receipts(b"a"), 20_000))) == []
    one.stay(11)
    assert one.pop() == [b"b"]
    one.stay(9)
    assert one.pop() == [b"a"]


def test_a_restart_remembers_what_the_log_says(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", *numbered(0, 10))
    one.pop()
    one.ack(*numbered(0, 7))
    bench.restart()
    again = BenchConsumer(bench, "one", None)
    again.handed = one.handed
    assert again.pop() == []
    assert again.ack(b"7") == []  # what was handed out is remembered as well
    again.stay(11)
    assert again.pop() == [b"8", b"9"]


def test_ordered_groups(bench: GroupBench) -> None:
    ordered = GroupSettings(partitions=6, invisible_ms=10_000, retry_ms=1_000)
    consumers = [BenchConsumer(bench, f"c{number}", ordered) for number in range(3)]
    topics = [f"t/{number}" for number in range(40)]
    for number in range(3):
        for topic in topics:
            publish(bench.store, topic, f"{topic}:{number}".encode())
    first = consumers[0]
    assert [len(each.partitions) for each in first.info().some] == [2, 2, 2]
    more = [BenchConsumer(bench, f"d{number}", ordered) for number in range(5)]
    assert sorted(len(each.partitions) for each in first.info().some) == [0, 0] + [1] * 6
    for each in more:
        each.talk.tell(GroupClose(each.ref))
    seen: dict[str, list[str]] = {topic: [] for topic in topics}
    for _ in range(200):
        for consumer in consumers:
            found = consumer.pop()
            assert len(found) <= 2  # one of each partition
            assert consumer.pop() == []
            for payload in found:
                topic, turn = payload.decode().split(":")
                seen[topic].append(turn)
            if found:
                consumer.talk.ask(Ack(consumer.ref, consumer.receipts(*found)))
            consumer.talk.ping()
        bench.tick()
    assert all(numbers == ["0", "1", "2"] for numbers in seen.values())
    assert first.info().lag == 0


def test_a_failed_message_blocks_its_partition_only(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one", GroupSettings(partitions=2, retry_ms=1_000))
    even, odd = (
        next(topic for topic in map("t/{}".format, range(9)) if crc32(topic.encode()) % 2 == n) for n in (0, 1)
    )
    publish(bench.store, even, b"0", b"2")
    publish(bench.store, odd, b"1", b"3")
    assert one.pop() == [b"0", b"1"]
    one.reject(b"0")
    one.ack(b"1")
    assert one.pop() == [b"3"]
    one.ack(b"3")
    assert one.pop() == []
    one.stay(1)
    assert one.pop() == [b"0"]
    one.ack(b"0")
    assert one.pop() == [b"2"]


def test_reset_and_drop(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", *numbered(0, 5))
    one.pop()
    one.ack(*numbered(0, 5))
    assert one.talk.call(GroupReset("g", "t/#", "3")) == GroupDone(3)
    assert one.pop() == numbered(3, 2)
    assert one.talk.call(GroupReset("g", "t/#", "earliest")) == GroupDone(0)
    assert one.ack(b"3") == one.receipts(b"3")
    assert one.pop(2) == numbered(0, 2)
    assert one.talk.call(GroupReset("g", "t/#", "latest")) == GroupDone(5)
    assert one.pop() == []
    answer = one.talk.call(GroupDrop("g", "t/#"))
    assert isinstance(answer, Failed)
    assert answer.code == FailureCode.NOT_ALLOWED
    one.talk.tell(GroupClose(one.ref))
    assert one.talk.call(GroupDrop("g", "t/#")) == GroupDone(0)
    assert one.talk.call(GroupList("", 0)) == GroupsListed([], False)
    assert isinstance(one.talk.call(GroupReset("g", "t/#", "latest")), Failed)
    bench.restart()
    assert not len(bench.store.groups)


def test_invalid_group_requests_are_refused(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")

    def code(answer: object) -> FailureCode:
        assert isinstance(answer, Failed)
        return answer.code

    assert code(one.talk.call(GroupOpen("g", "t/#/x", "c", None, "latest"))) == FailureCode.BAD_REQUEST
    assert code(one.talk.call(GroupOpen("g", "t/#", "c", GroupSettings(3), ""))) == FailureCode.NOT_ALLOWED
    assert code(one.talk.call(GroupOpen("new", "t/#", "c", None, "then"))) == FailureCode.NO_SUCH_POSITION
    assert code(one.talk.call(Pop(99, 1, 1, 0, 0))) == FailureCode.NOT_ALLOWED
    many = [Receipt(1, 0, 65_536), Receipt(1, 0, 1)]
    assert code(one.talk.call(Ack(one.ref, many))) == FailureCode.BAD_REQUEST
    assert one.settled(one.talk.ask(Ack(one.ref, [Receipt(5, 7, 2)]))) == [Receipt(5, 7, 2)]


def test_in_flight_is_bounded(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one", GroupSettings(most_in_flight=4))
    publish(bench.store, "t/1", *numbered(0, 10))
    assert one.pop() == numbered(0, 4)
    assert one.pop() == []
    one.ack(b"1", b"2")
    assert one.pop() == numbered(4, 2)


def test_answers_are_bounded(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", *(bytes([65 + number]) * 1_000 for number in range(6)))
    assert len(one.pop(max_bytes=1)) == 1
    assert len(one.pop(max_bytes=3_000)) == 2
    assert len(one.pop()) == 3


def test_a_wildcard_filter_has_what_came_since_it_was_held(bench: GroupBench) -> None:
    publish(bench.store, "t/1/x", b"before")
    one = BenchConsumer(bench, "one", of="t/+/x")
    publish(bench.store, "t/1/x", b"a")
    publish(bench.store, "t/1/y", b"b")
    publish(bench.store, "t/2/x", b"c")
    assert one.pop() == [b"a", b"c"]


def test_a_pop_costs_no_record_by_itself(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", *numbered(0, 100))
    end = bench.store.end
    for _ in range(10):
        one.pop(10)
    one.ack(*numbered(0, 100))
    assert bench.store.end - end < 150


def test_a_full_disk(bench: GroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", b"a", b"b")
    one.pop()
    with monkeypatch.context() as full:
        full.setattr(CommitLog, "append", _no_room)
        asked = one.talk.ask(Ack(one.ref, one.receipts(b"a")))
        bench.wait(0.2)
        answer = one.talk.answer(asked)
        assert isinstance(answer, Failed)
        assert answer.code == FailureCode.STORE_FULL
        opened = one.talk.call(GroupOpen("new", "t/#", "c", None, "latest"))
        assert isinstance(opened, Failed)
    assert one.ack(b"b") == []
    bench.restart()
    assert BenchConsumer(bench, "two").info().lag == 0  # what could not be written was written later


def _no_room(log: CommitLog, *_: object) -> int:
    raise StoreFull(log.folder)


def test_a_connection_that_is_lost_is_given_nothing(bench: GroupBench) -> None:
    one, two = BenchConsumer(bench, "one"), BenchConsumer(bench, "two")
    asked = one.wait(), two.wait()
    one.talk.flush()
    one.talk.cut()
    publish(bench.store, "t/1", b"a")
    bench.tick()
    assert two.took(asked[1]) == [b"a"]


def test_a_peer_that_does_not_read_is_given_no_more(bench: GroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = BenchConsumer(bench, "one"), BenchConsumer(bench, "two")
    asked = [one.talk.ask(Pop(one.ref, 1, 1, 0, 60_000)) for _ in range(3)], two.wait()
    monkeypatch.setattr(line, "UNSENT_BYTES", 1)
    publish(bench.store, "t/1", b"a", b"b")
    bench.tick()
    assert two.took(asked[1]) == [b"b"]
    assert [one.took(each) for each in asked[0]] == [[b"a"], None, None]


def test_many_groups_are_listed_in_parts(bench: GroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_requests, "LIST_BYTES", 2_000)
    talk = bench.connect("gw")  # gateways may do it as well
    for number in range(9):
        assert isinstance(talk.call(GroupOpen(f"g{number}", "t/#", "c", None, "latest")), GroupOpened)
    found: list[str] = []
    more, parts = True, 0
    while more:
        listed = talk.call(GroupList("", len(found)))
        assert isinstance(listed, GroupsListed)
        found += [each.group for each in listed.groups]
        more = listed.more
        parts += 1
    assert found == [f"g{number}" for number in range(9)]
    assert parts > 2
    named = talk.call(GroupList("g3", 0))
    assert isinstance(named, GroupsListed)
    assert [each.group for each in named.groups] == ["g3"]


def test_a_consumer_that_comes_again_is_the_same(bench: GroupBench) -> None:
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", b"a")
    one.pop()
    one.talk.cut()
    again = BenchConsumer(bench, "one")
    assert again.ref == one.ref
    again.handed = one.handed
    assert again.ack(b"a") == []


def test_not_too_many_wait(bench: GroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "MOST_WAITING", 2)
    one = BenchConsumer(bench, "one")
    asked = [one.wait() for _ in range(3)]
    answer = one.talk.answer(asked[2])
    assert isinstance(answer, Failed)
    assert answer.code == FailureCode.NOT_ALLOWED
    assert one.pop() == []
    publish(bench.store, "t/1", b"a")
    bench.tick()
    assert one.took(asked[0]) == [b"a"]


def test_new_messages_are_not_handed_out_while_the_log_is_full(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MOST_UNWRITTEN", 3)
    one = BenchConsumer(bench, "one")
    publish(bench.store, "t/1", *numbered(0, 6))
    with monkeypatch.context() as full:
        full.setattr(CommitLog, "append", _no_room)
        assert one.pop(4) == numbered(0, 4)
        assert one.pop(4) == []
    bench.wait(0.3)
    assert one.pop(4) == numbered(4, 2)
