"""Consumers whose leases outlive them, as the console's are; without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.server.peers import CHECK_CLIENTS_S
from store.state.group_settings import GroupSettings
from store.wire.group_messages import Ack, GroupClose, GroupOpen, GroupOpened, Receipt, Reject, Settled
from store.wire.messages import Failed, FailureCode
from tests.support.group_bench import SETTINGS, BenchConsumer, GroupBench
from tests.support.stores import publish


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GroupBench]:
    bench = GroupBench(tmp_path)
    yield bench
    bench.store.close()


class LastingConsumer(BenchConsumer):
    def open(self) -> GroupOpened:
        opened = self.talk.call(GroupOpen("g", "t/#", "lasting", None, "earliest", lasting=True))
        assert isinstance(opened, GroupOpened), opened
        self.ref = opened.ref
        return opened

    def close(self) -> None:
        self.talk.tell(GroupClose(self.ref, 0))


def lasting(bench: GroupBench, name: str, settings: GroupSettings = SETTINGS) -> LastingConsumer:
    made = LastingConsumer(bench, name, settings)
    made.talk.tell(GroupClose(made.ref))
    made.open()
    return made


def test_what_it_was_handed_stays_leased_when_it_closes(bench: GroupBench) -> None:
    one, two = lasting(bench, "one"), BenchConsumer(bench, "two")
    publish(bench.store, "t/1", b"0", b"1", b"2")
    assert one.pop() == [b"0", b"1", b"2"]
    one.close()
    assert two.pop() == []
    assert two.info().in_flight == 3
    two.handed.update(one.handed)
    assert two.ack(b"0") == []
    assert two.reject(b"1", delay_ms=0) == []
    assert two.pop() == [b"1"]
    two.stay(11)
    assert two.pop() == [b"2", b"1"]
    assert [two.handed[each][1] for each in (b"2", b"1")] == [2, 3]


def test_what_it_was_handed_stays_leased_when_its_peer_is_gone(bench: GroupBench) -> None:
    one, two = lasting(bench, "one"), BenchConsumer(bench, "two")
    publish(bench.store, "t/1", b"0")
    assert one.pop() == [b"0"]
    two.stay(5)  # longer than wire.lease_ms
    assert bench.peers.leases_ended == 1
    assert two.pop() == []
    again = lasting(bench, "three")
    again.handed.update(one.handed)
    assert again.ack(b"0") == []
    two.stay(int(CHECK_CLIENTS_S))
    assert two.pop() == []
    assert two.info().lag == 0


def test_others_of_the_group_give_back_as_before(bench: GroupBench) -> None:
    one, two = BenchConsumer(bench, "one"), lasting(bench, "two")
    publish(bench.store, "t/1", b"0")
    assert one.pop() == [b"0"]
    one.talk.tell(GroupClose(one.ref))
    assert two.pop() == [b"0"]


def test_a_partition_waits_for_the_message_of_a_consumer_that_went(bench: GroupBench) -> None:
    one = lasting(bench, "one", GroupSettings(partitions=1, invisible_ms=10_000))
    publish(bench.store, "t/1", b"0", b"1")
    assert one.pop() == [b"0"]
    one.close()
    one.open()
    assert one.pop() == []
    assert one.ack(b"0") == []
    assert one.pop() == [b"1"]


def test_a_handle_counts_across_a_kill_of_the_store_if_the_log_has_the_lease(bench: GroupBench) -> None:
    one = lasting(bench, "one")
    publish(bench.store, "t/1", b"0", b"1")
    assert one.pop(1) == [b"0"]
    one.stay(1)  # it is written
    assert one.pop() == [b"1"]
    handed = dict(one.handed)
    bench.kill()
    again = lasting(bench, "two")
    assert again.pop() == [b"1"]
    again.handed[b"0"] = handed[b"0"]
    assert again.ack(b"0", b"1") == []
    serial, _, at = handed[b"1"]
    late = again.talk.call(Ack(again.ref, [Receipt(serial, at, 1)]))
    assert late == Settled([Receipt(serial, at, 1)])


def test_requests_that_wait_end_with_nothing_when_it_says_so(bench: GroupBench) -> None:
    """The program has left that they were for."""
    one = lasting(bench, "one")
    waiting = one.wait()
    assert one.took(waiting) is None
    assert one.settled(one.talk.ask(Reject(one.ref, [], 0, "", unseen=True))) == []
    assert one.took(waiting) == []


def test_no_group_is_made_at_a_place_that_is_none(bench: GroupBench) -> None:
    talk = BenchConsumer(bench, "one").talk
    for topic_filter in ("t/1", "x/#", "x/+"):
        refused = talk.call(GroupOpen("new", topic_filter, "c", None, "nowhere", lasting=True))
        assert isinstance(refused, Failed)
        assert refused.code == FailureCode.NO_SUCH_POSITION
    assert len(bench.store.groups) == 1
