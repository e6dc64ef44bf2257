"""A gateway's Append that makes messages of a group a session's own, when a store was killed after it had handed them
out: the log may not say that. The messages are then done with once, or the Append is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.records._records import RecordBatch
from store.state.changes import GroupAdvanced, encode_change
from store.state.group_settings import GroupSettings
from store.wire.group_messages import GroupOpen, GroupOpened, Pop, Popped
from store.wire.messages import Append, Appended, Failed, FailureCode
from tests.support.store_protocol_bench import Talk, WireBench
from tests.support.stores import publish


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path / "data")
    yield bench
    bench.store.close()


class Gateway:
    """A gateway with one consumer."""

    def __init__(self, bench: WireBench, name: str, partitions: int = 0) -> None:
        self.talk: Talk = bench.connect(name)
        settings = GroupSettings(partitions=partitions, max_deliveries=0)
        opened = self.talk.call(GroupOpen("g", "t/#", f"of {name}", settings, "earliest"))
        assert isinstance(opened, GroupOpened), opened
        self.ref = opened.ref

    def pop(self, most: int) -> list[int]:
        """The queue_offsets."""
        popped = self.talk.call(Pop(self.ref, most, 1 << 20, 0, 0))
        assert isinstance(popped, Popped)
        return [offset for _, _, first, number in popped.handed for offset in range(first, first + number)]

    def take(self, sequence: int, first: int, number: int) -> Appended | Failed:
        done = GroupAdvanced("g", "t/#", done=(first, number))
        answer = self.talk.call(Append(sequence), _records(done))
        assert isinstance(answer, Appended | Failed)
        return answer


def _records(change: GroupAdvanced) -> bytes:
    batch = RecordBatch()
    batch.append(*encode_change(change))
    return bytes(batch)


def begun(bench: WireBench, partitions: int = 0) -> None:
    """A group of which a gateway was handed four messages, of six that follow two; the store was killed then."""
    one = Gateway(bench, "gw-1", partitions)
    publish(bench.store, "t/1", *(b"%d" % number for number in range(6)))
    if partitions:
        for number in range(4):
            assert one.pop(1) == [number]
            if number < 3:
                one.take(number + 1, number, 1)
    else:
        assert one.pop(4) == [0, 1, 2, 3]
    bench.kill()


def test_messages_handed_out_before_a_kill_are_taken_over_once(bench: WireBench) -> None:
    begun(bench)
    one, two = Gateway(bench, "gw-1"), Gateway(bench, "gw-2")
    assert isinstance(one.take(1, 1, 3), Appended)
    assert two.pop(10) == [0, 4, 5]
    bench.kill()
    (group,) = bench.hub.consumers.listed("g")
    assert group.group.acked_offset == 0
    assert Gateway(bench, "gw-3").pop(10) == [0, 4, 5]


def test_messages_leased_to_another_gateway_cannot_be_taken_over(bench: WireBench) -> None:
    begun(bench)
    one, two = Gateway(bench, "gw-1"), Gateway(bench, "gw-2")
    assert two.pop(2) == [0, 1]
    refused = one.take(1, 1, 2)
    assert isinstance(refused, Failed)
    assert refused.code is FailureCode.FENCED
    assert isinstance(one.take(2, 2, 2), Appended)
    assert isinstance(two.take(1, 0, 2), Appended)
    assert two.pop(10) == [4, 5]


def test_messages_done_with_by_another_gateway_cannot_be_taken_over(bench: WireBench) -> None:
    begun(bench)
    one, two = Gateway(bench, "gw-1"), Gateway(bench, "gw-2")
    assert two.pop(2) == [0, 1]
    assert isinstance(two.take(1, 0, 2), Appended)
    assert isinstance(one.take(1, 0, 1), Failed)
    assert two.pop(10) == [2, 3, 4, 5]


def test_an_ordered_group_goes_on_behind_it(bench: WireBench) -> None:
    begun(bench, partitions=4)
    one, two = Gateway(bench, "gw-1", 4), Gateway(bench, "gw-2", 4)
    assert isinstance(one.take(4, 3, 1), Appended)
    assert one.pop(1) + two.pop(1) == [4]
    bench.kill()
    assert Gateway(bench, "gw-3", 4).pop(1) in ([], [4])  # until its lease ends
    assert isinstance(Gateway(bench, "gw-1", 4).take(5, 3, 1), Failed)


def test_messages_that_are_not_there_yet_are_not_held(bench: WireBench) -> None:
    begun(bench)
    one = Gateway(bench, "gw-1")
    assert isinstance(one.take(1, 3, 1_000), Appended)
    (group,) = bench.hub.consumers.listed("g")
    assert group.group.looked_until == 6
