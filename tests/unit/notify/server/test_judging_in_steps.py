"""What the user of a client may do with thousands of topics in one frame is judged some at a time."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.auth.access import AccessParts
from gateway.auth.permissions import parse_permissions
from notify.requests import users as permits
from notify.requests.users import ConnectionPermits, Permission
from notify.server import incoming
from penstock.servers.store_users import StoreUsers
from store.records._records import RecordBatch
from store.records.records import RecordFlag, RecordType
from store.wire import messages as wire
from store.wire.frames import encode
from store.wire.group_messages import (
    Ack,
    GroupList,
    GroupOpen,
    GroupOpened,
    GroupsListed,
    Pop,
    Popped,
    Receipt,
    Settled,
)
from store.wire.log_messages import MOST_TOPICS, QueueOffsets, QueueOffsetsFound
from store.wire.messages import FailureCode, Role
from tests.support.store_protocol_bench import Talk, WireBench, failure
from tests.support.token_users import token, users_of

COUNT = 500
RULES = """
[[rule]]
allow = ["publish", "retain", "subscribe"]
topics = ["line/#"]
"""
NOTHING = """
[[rule]]
deny = ["publish"]
topics = ["#"]
"""


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece of work at a time."""
    monkeypatch.setattr(incoming, "WORK_S", 0.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WireBench]:
    bench = WireBench(tmp_path)
    yield bench
    bench.store.close()


@pytest.fixture
def users() -> StoreUsers:
    return users_of(RULES)


def connect(bench: WireBench, users: StoreUsers, name: str = "ann") -> Talk:
    return bench.connect(name, Role.CLIENT, judge=users, password=token("ann"))


def of_topics(count: int, last: bytes = b"line/last", flags: int = 0) -> bytes:
    batch = RecordBatch()
    for number in range(count):
        batch.append(RecordType.MESSAGE, b"x", topic=b"line/%d" % number, flags=flags)
    batch.append(RecordType.MESSAGE, b"x", topic=last, flags=flags)
    return bytes(batch)


REQUESTS = {
    "Publish": (wire.Publish(1, wire.Wait.STORED), of_topics(COUNT)),
    "Append": (wire.Append(1), of_topics(COUNT)),
    "retained": (wire.Publish(1, wire.Wait.STORED), of_topics(COUNT // 2, flags=RecordFlag.RETAIN)),
    "QueueOffsets": (QueueOffsets(1 << 40, [f"line/{number}" for number in range(MOST_TOPICS)]), b""),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_permissions_are_judged_one_topic_in_each_step(bench: WireBench, users: StoreUsers, name: str) -> None:
    """With 1,000 rules each decision takes 0.4 ms: 2,900 topics held the loop for 1.2 s, 500 for 0.2. Meanwhile others
    are served, and what is behind on the connection waits."""
    client, other = connect(bench, users), connect(bench, users, "other")
    message, records = REQUESTS[name]
    request = client.ask(message, records)
    client.send(encode(wire.Ping()))
    steps = 0
    while client.conversation.is_full and not client.frames:
        assert isinstance(other.call(wire.Retained("line/none", "", 1)), wire.RetainedFound)
        client.conversation.go_on()
        for chunk in client.conversation.outgoing():
            client.take(chunk)
        steps += 1
        assert steps < 100_000
    assert steps >= COUNT
    while bench.store.applying.step():
        pass
    assert isinstance(client.answer(request), wire.Published | wire.Appended | QueueOffsetsFound)
    assert [type(each.message) for each in client.frames] == [wire.Pong]


@pytest.mark.parametrize("name", ["Publish", "Append"])
def test_publish_is_not_stored_if_its_last_topic_is_refused(bench: WireBench, users: StoreUsers, name: str) -> None:
    client = connect(bench, users)
    message, _ = REQUESTS[name]
    assert failure(client.call(message, of_topics(COUNT, last=b"other"))) == FailureCode.NOT_PERMITTED
    assert bench.store.queues.dispatcher.messages == 0
    again = wire.Publish(2, wire.Wait.STORED)
    assert isinstance(client.call(again, of_topics(COUNT)), wire.Published)
    assert bench.store.queues.dispatcher.messages == COUNT + 1


def test_a_retained_message_needs_its_right_wherever_it_stands(bench: WireBench) -> None:
    users = users_of(RULES.replace('"retain", ', ""))
    batch = RecordBatch()
    for flags in (0, 0, RecordFlag.RETAIN, 0):
        batch.append(RecordType.MESSAGE, b"x", topic=b"line/1", flags=flags)
    answer = connect(bench, users).call(wire.Publish(1, wire.Wait.STORED), bytes(batch))
    assert isinstance(answer, wire.Failed)
    assert (answer.code, answer.message) == (FailureCode.NOT_PERMITTED, "retain line/1")


def test_rules_that_change_between_steps_count(bench: WireBench, users: StoreUsers) -> None:
    """What was allowed before is judged again, by the rules that hold at the end."""
    client = connect(bench, users)
    request = client.ask(wire.Publish(1, wire.Wait.STORED), of_topics(COUNT))
    for _ in range(COUNT // 2):
        client.conversation.go_on()
    users.access.replace(AccessParts(permissions=parse_permissions(tomllib.loads(NOTHING + RULES))))
    users.replaced()
    assert failure(client.answer(request)) == FailureCode.NOT_PERMITTED
    assert bench.store.queues.dispatcher.messages == 0


def test_a_connection_that_ends_between_steps_stores_nothing(bench: WireBench, users: StoreUsers) -> None:
    """As a reload of the rules ends it; the client sends it again, and it is stored once."""
    client = connect(bench, users)
    records = of_topics(COUNT)
    client.ask(wire.Publish(1, wire.Wait.STORED), records)
    client.conversation.close("the files of users and permissions were read again")
    client.flush()
    client.cut()
    assert bench.store.queues.dispatcher.messages == 0
    again = connect(bench, users)
    for _ in range(2):
        assert isinstance(again.call(wire.Publish(1, wire.Wait.STORED), records), wire.Published)
    assert bench.store.queues.dispatcher.messages == COUNT + 1


def test_a_peer_that_is_not_read_meanwhile_keeps_its_lease(bench: WireBench, users: StoreUsers) -> None:
    """Its Pongs wait behind the frame, for as long as that is judged."""
    client = connect(bench, users)
    request = client.ask(wire.Publish(1, wire.Wait.STORED), of_topics(COUNT))
    lease_s = bench.wire.lease_ms / 1000
    for _ in range(10):
        bench.wait(lease_s / 2)
        client.conversation.go_on()
    assert isinstance(client.answer(request), wire.Published)


def test_resent_publish_costs_no_more_than_the_stored_one(bench: WireBench) -> None:
    """80,000 topics under a sequence that is stored had no bound: to look for their places took 240 ms."""
    client = bench.connect("c", Role.CLIENT)
    records = of_topics(0, last=b"line/0000") * 4_000
    others = b"".join(of_topics(0, last=b"line/%04d" % number) for number in range(4_000))
    published = client.call(wire.Publish(1, wire.Wait.STORED), records)
    assert client.call(wire.Publish(1, wire.Wait.STORED), records) == published
    assert failure(client.call(wire.Publish(1, wire.Wait.STORED), others)) == FailureCode.NO_SUCH_POSITION


def test_remembered_answers_are_bounded_in_characters(bench: WireBench, users: StoreUsers) -> None:
    """4,096 filters of 64 KB would be 256 MB for one connection."""
    client = connect(bench, users)
    for number in range(20):
        client.call(wire.Follow(f"line/{number}/" + "x" * 60_000, False, -1, False))
    known = client.conversation.permits._known
    assert sum(len(each.topic) for each in known) <= permits.REMEMBERED_CHARACTERS


def test_permits_without_a_user_allow_everything(users: StoreUsers) -> None:
    steps = ConnectionPermits(None).judging(lambda: [Permission("publish", "a")], lambda: None, lambda: None)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value is None


def steps_of(talk: Talk, request: wire.WireMessage) -> tuple[int, wire.WireMessage | None]:
    """In how many steps it is answered, and the answer."""
    number = talk.ask(request)
    steps = 0
    while talk.conversation.is_full:
        for chunk in talk.conversation.outgoing():
            talk.take(chunk)
        talk.conversation.go_on()
        steps += 1
        assert steps < 100_000
    return steps, talk.answer(number)


def test_groups_are_listed_one_in_each_step(bench: WireBench, users: StoreUsers) -> None:
    """A store may have 1,024 of them: with 1,000 rules a list took 0.4 s."""
    client = connect(bench, users)
    for number in range(100):
        for topic_filter in ("line/+", "other"):
            opened = GroupOpen(f"g{number}", topic_filter, "c", None, "latest")
            assert isinstance(bench.connect("gw").call(opened), GroupOpened)
    steps, first = steps_of(client, GroupList("", 0))
    assert steps >= 200
    assert isinstance(first, GroupsListed)
    assert [each.topic_filter for each in first.groups] == ["line/+"] * 100
    assert not first.more
    _, rest = steps_of(client, GroupList("", 98))
    assert isinstance(rest, GroupsListed)
    assert rest.groups == first.groups[98:]


@pytest.mark.parametrize("number", [1, 20])
def test_messages_are_settled_some_in_each_step(bench: WireBench, number: int) -> None:
    """65,536 receipts in one Ack took 108 ms. The answer comes behind all of them, and what is stale is told."""
    client = bench.connect("c", Role.CLIENT)
    client.call(wire.Publish(1, wire.Wait.STORED), of_topics(0, last=b"line/1") * 4_000)
    opened = client.call(GroupOpen("g", "line/1", "c", None, "earliest"))
    assert isinstance(opened, GroupOpened)
    popped = client.call(Pop(opened.ref, 4_000, 1 << 20, 0, 0))
    assert isinstance(popped, Popped)
    ((serial, _, first, count),) = popped.handed
    assert (first, count) == (0, 4_000)
    receipts = [Receipt(serial, at, number) for at in range(0, 4_000, number)]
    steps, answer = steps_of(client, Ack(opened.ref, [*receipts, Receipt(serial + 1, 0, 4_100)]))
    assert steps >= len(receipts)
    while answer is None:
        bench.wait(0.1)
        client.flush()
        answer = next((each.message for each in client.frames if isinstance(each.message, Settled)), None)
    assert isinstance(answer, Settled)
    assert sum(each.number for each in answer.stale) == 4_100
    listed = client.call(GroupList("g", 0))
    assert isinstance(listed, GroupsListed)
    assert (listed.groups[0].acked_offset, listed.groups[0].in_flight) == (4_000, 0)
