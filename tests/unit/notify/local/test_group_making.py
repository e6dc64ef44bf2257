"""Where a new group begins whose filter's queue does not have all that is stored; without sockets."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from notify.local.group_making import LOOK_BYTES
from store.wire.frames import HEAD
from store.wire.group_messages import GroupClose, GroupDrop, GroupList, GroupOpen, GroupOpened, GroupsListed
from store.wire.messages import Append, Failed, FailureCode, Role, WireMessage
from tests.support.store_protocol_bench import Talk, WireBench, message
from tests.support.stores import publish


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


@pytest.fixture
def client(bench: WireBench) -> Talk:
    return bench.connect("c", Role.CLIENT)


def asked(client: Talk, topic_filter: str, start: str, group: str = "g", or_refuse: bool = True) -> WireMessage:
    return client.call(GroupOpen(group, topic_filter, "c", None, start, or_refuse=or_refuse))


def lag(client: Talk, group: str = "g") -> int:
    """Messages that a group is yet to hand out."""
    listed = client.call(GroupList(group, 0))
    assert isinstance(listed, GroupsListed)
    (found,) = listed.groups
    return found.lag


def is_refused(answer: WireMessage) -> bool:
    if isinstance(answer, GroupOpened):
        return False
    assert isinstance(answer, Failed)
    assert answer.code == FailureCode.NOT_ALLOWED
    assert "start='now'" in answer.message
    return True


@pytest.mark.parametrize("topic_filter", ["#", "+/1", "t/+", "t/1/#", "+/#"])
@pytest.mark.parametrize("start", ["earliest", "-1h", "2020-01-01T00:00:00Z", "@0", "0", "=0"])
def test_group_start_that_no_queue_has_is_refused(
    bench: WireBench, client: Talk, topic_filter: str, start: str
) -> None:
    publish(bench.store, "t/1", b"a", b"b")
    assert is_refused(asked(client, topic_filter, start))
    assert client.call(GroupList("g", 0)) == GroupsListed([], False)
    assert isinstance(asked(client, topic_filter, "latest"), GroupOpened)
    assert isinstance(asked(client, topic_filter, start), GroupOpened)  # it is there, and goes on where it is
    assert lag(client) == 0


@pytest.mark.parametrize("topic_filter", ["t/1", "t/#"])
@pytest.mark.parametrize("start", ["earliest", "-1h", "@0"])
def test_a_whole_queue_has_it(bench: WireBench, client: Talk, topic_filter: str, start: str) -> None:
    publish(bench.store, "t/1", b"a", b"b")
    assert isinstance(asked(client, topic_filter, start), GroupOpened)
    assert lag(client) == 2


def test_where_nothing_that_matches_is_stored_nothing_is_missing(bench: WireBench, client: Talk) -> None:
    gateway = bench.connect("gw")
    gateway.call(Append(1), message(b"a", b"other/1"))
    for group, topic_filter in (("one", "t/+"), ("two", "+/2"), ("three", "#")):
        assert is_refused(asked(client, topic_filter, "earliest", group)) is (topic_filter == "#")
    publish(bench.store, "t/1", b"b")
    assert lag(client, "one") == 1
    assert isinstance(asked(client, "t/+", "earliest", "four"), GroupOpened)  # what the queue has is all there is
    assert lag(client, "four") == 1


def test_more_than_is_looked_at_counts_as_missing(bench: WireBench, client: Talk) -> None:
    publish(bench.store, "other", b"x" * LOOK_BYTES)
    publish(bench.store, "other", b"x")
    assert is_refused(asked(client, "+/2", "earliest"))


def test_a_queue_that_began_later_has_what_came_since(bench: WireBench, client: Talk) -> None:
    publish(bench.store, "t/1", b"old")
    assert isinstance(asked(client, "t/+", "latest", "first"), GroupOpened)
    publish(bench.store, "t/1", b"a", b"b")
    published_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= published_ms:
        pass  # "-0s" has what was stored in the same millisecond
    for _ in range(2):
        assert is_refused(asked(client, "t/+", "earliest", "second"))
        assert is_refused(asked(client, "t/+", "-1h", "second"))
        for start, expected in (("@1", 1), ("-0s", 0)):
            assert isinstance(asked(client, "t/+", start, "second"), GroupOpened)
            assert lag(client, "second") == expected
            drop(client, "second")
        bench.restart()  # the log's record says since when it is kept
        client = bench.connect("c", Role.CLIENT)
    assert isinstance(asked(client, "t/+", "earliest", "second", or_refuse=False), GroupOpened)
    assert lag(client, "second") == 2


def drop(client: Talk, group: str) -> None:
    opened = asked(client, "t/+", "latest", group)
    assert isinstance(opened, GroupOpened)
    client.tell(GroupClose(opened.ref))
    client.call(GroupDrop(group, "t/+"))


@pytest.mark.parametrize("fields", [5, 7])
def test_an_older_peer_is_never_refused(bench: WireBench, client: Talk, fields: int) -> None:
    """Its GroupOpen has no `or_refuse`."""
    publish(bench.store, "t/1", b"a", b"b")
    body = msgspec.msgpack.encode(["g", "#", "c", None, "earliest", None, None][:fields])
    padding = bytes(-len(body) % 8)
    client.send(HEAD.pack(HEAD.size + len(body) + len(padding), 64, b"", 99, len(body)) + body + padding)
    assert isinstance(client.answer(99), GroupOpened)
    assert lag(client) == 0
    publish(bench.store, "t/1", b"c")
    assert lag(client) == 1
