"""Consumer groups go on in the tier where retention has passed their position, and come back to the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from notify.links.address import StoreAddress
from penstock.store_client import StoreClient
from penstock.sync import Delivery
from store.files.segment import segment_paths
from store.wire.group_messages import GroupInfo, GroupList, GroupsListed
from store.wire.messages import Role
from tests.support.store_process import StoreProcess
from tests.tier.places import TablePlace
from tests.tier.test_cold_reads import TAGS, Sent, client_of, sent, store_that_reads, tier
from tests.tier.tier_process import Tier, oldest, wait_until

__all__ = ["sent", "tier"]

FILTERS = ("line/1", "line/#")
LONG_S = 3_600


def info(store: StoreProcess, name: str = "g") -> GroupInfo:
    with StoreClient(StoreAddress.parse(store.url), "", None, Role.CLIENT, LONG_S) as client:
        (found,) = client.call(GroupList(name, 0), GroupsListed).groups
        return found


@contextmanager
def consuming(store: StoreProcess, topic_filter: str, **options: Any) -> Iterator[Iterator[Delivery]]:
    """The messages of group g, as long as the block goes on: so few in hand that none is given back unseen."""
    few = {"prefetch": 20} | options
    with client_of(store) as client, client.subscribe(topic_filter, group="g", **few) as messages:
        yield iter(messages)


def make(store: StoreProcess, topic_filter: str, **options: Any) -> None:
    """The group begins here."""
    with consuming(store, topic_filter, **options):
        pass


def taken(messages: Iterator[Delivery], number: int) -> list[tuple[str, bytes, str]]:
    """The next ones, which are done with."""
    found = []
    for message in islice(messages, number):
        assert message.ack()
        found.append((message.topic, message.payload, message.message_id))
    return found


def drop_all(store: StoreProcess) -> None:
    """Publish to another topic until retention has dropped all that the log has now."""
    behind = max(int(path.stem) for path in segment_paths(store.data / "log"))
    with client_of(store) as client:
        while oldest(store) <= behind:
            for _ in range(20):
                client.publish("other", bytes(3_000), compress=False)


def drop(sent: Sent, store: StoreProcess, log_bytes: int = 800_000) -> None:
    """Publish until retention has dropped so many bytes more."""
    goal = oldest(store) + log_bytes
    while oldest(store) < goal:
        sent.more(50)


@pytest.mark.parametrize("topic_filter", FILTERS)
def test_a_group_that_retention_has_passed_misses_nothing(
    store: StoreProcess, tier: Tier, seed: int, topic_filter: str
) -> None:
    sent = Sent(store, seed)
    make(store, topic_filter)
    drop(sent, store)
    expected = sent.of(topic_filter)
    assert info(store).lag == len(expected)
    with consuming(store, topic_filter) as messages:
        found = []
        for number, message in enumerate(islice(messages, len(expected))):
            assert (message.deliveries, message.lost) == (1, 0)
            assert message.queue_offset == (number if topic_filter == "line/1" else None)
            assert message.headers == {"unit": "C"}
            found.append((message.topic, message.payload, message.message_id))
            message.ack()
        assert found == expected
        sent.more(10)
        assert taken(messages, len(sent.of(topic_filter)) - len(expected)) == sent.of(topic_filter)[len(expected) :]
    assert info(store).lag == 0


def test_a_group_with_a_tag_has_its_messages_from_the_tier_and_no_others(
    store: StoreProcess, tier: Tier, seed: int
) -> None:
    sent = Sent(store, seed)
    make(store, "line/#", tag="slow||other")
    drop(sent, store)
    sent.more(10)
    expected = [each for number, each in enumerate(sent.messages) if TAGS[number % 3] == "slow"]
    with consuming(store, "line/#") as messages:
        assert taken(messages, len(expected)) == expected
    wait_until(lambda: info(store).lag == 0)


@pytest.mark.parametrize("topic_filter", FILTERS)
def test_a_group_begins_in_the_tier(store: StoreProcess, tier: Tier, sent: Sent, topic_filter: str) -> None:
    expected = sent.of(topic_filter)
    with client_of(store) as client:
        stored = [each.stored_at for each in islice(client.read(topic_filter), 4)]
    since = stored.index(stored[3])  # perhaps another one was stored in the same millisecond
    for number, start, at in ((0, None, 0), (1, "earliest", 0), (2, "@3", 3), (3, stored[3], since)):
        with client_of(store) as client:
            messages = client.subscribe(topic_filter, group=f"g{number}", start=start)
            with messages as each:
                assert taken(iter(each), len(expected) - at) == expected[at:]
        assert info(store, f"g{number}").lag == 0


def test_group_goes_on_while_the_log_begins_later(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    with consuming(store, "line/#") as messages:
        found = taken(messages, 20)
        drop(sent, store)
        found += taken(messages, len(sent.messages) - 20)
    assert sorted(found, key=lambda each: each[1]) == sent.messages  # what waits in the client goes back after 1 s


@pytest.mark.parametrize("partitions", [0, 4])
def test_unacknowledged_messages_come_again_from_the_tier(
    store: StoreProcess, tier: Tier, seed: int, partitions: int
) -> None:
    """Messages that were not acknowledged, that are to be tried again, and dead letters, all dropped meanwhile."""
    sent = Sent(store, seed)
    sent.more(40)
    options = {"ordered": True, "partitions": partitions} if partitions else {}
    held: list[str] = []
    done: list[str] = []
    with consuming(store, "line/#", **options) as messages:
        for number, message in enumerate(islice(messages, 12)):
            if number % 3:
                done.append(message.message_id)
                assert message.ack()
            else:
                held.append(message.message_id)
                if partitions:
                    assert message.retry(after=0)
                    break
        drop(sent, store)
    dead = held[0]
    again: list[str] = []
    with consuming(store, "line/#") as messages:
        while len(done) < len(sent.messages):
            message = next(messages)
            if message.message_id in held:
                again.append(message.message_id)
                assert message.deliveries > 1
                if message.message_id == dead:
                    assert message.reject("broken")
                else:
                    assert message.ack()
            else:
                assert message.ack()
            done.append(message.message_id)
    assert sorted(done) == sorted(each for _, _, each in sent.messages)
    assert set(again) == set(held)
    ((dead_topic, dead_payload),) = [(topic, payload) for topic, payload, each in sent.messages if each == dead]
    with client_of(store) as client:
        (letter,) = client.read(f"$dead/g/{dead_topic}")
        assert letter.payload == dead_payload
        assert letter.headers["penstock-reason"] == "broken"


def test_messages_of_a_key_keep_their_order(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    found: dict[str, list[bytes]] = {}
    with consuming(store, "line/#", ordered=True, partitions=4) as messages:
        for message in islice(messages, len(sent.messages)):
            found.setdefault(message.key or "", []).append(message.payload)
            message.ack()
    for number in range(10):
        assert found[f"k{number}"] == [each[1] for each in sent.messages[number::10]]


@pytest.mark.parametrize("killed", ["store", "tier"])
def test_kills_cost_no_message(store: StoreProcess, tier: Tier, seed: int, killed: str) -> None:
    sent = Sent(store, seed)
    make(store, "line/#")
    drop(sent, store)
    number = 0
    acked: set[str] = set()
    with consuming(store, "line/#", invisible=LONG_S) as messages:
        for message in messages:
            assert message.message_id not in acked
            number += 1
            if number in (20, 200, 350):
                if killed == "store":
                    store.restart()
                else:
                    tier.kill()
                    tier.start()
            if message.ack():
                acked.add(message.message_id)
            if len(acked) == len(sent.messages):
                break
    assert acked == {each for _, _, each in sent.messages}  # what waits in the client for longer than 1 s goes back


def test_without_a_tier_it_waits_and_others_go_on(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    tier.kill()
    make(store, "line/1", start="@0")
    expected = sent.of("line/1")
    with ThreadPoolExecutor(1) as pool, consuming(store, "line/1") as messages, client_of(store) as client:
        waiting = pool.submit(taken, messages, len(expected))
        with client.subscribe("line/2", group="late", start="now") as others:
            before = len(sent.of("line/2"))
            sent.more(20)
            assert taken(iter(others), len(sent.of("line/2")) - before) == sent.of("line/2")[before:]
        wait_until(lambda: "group g over line/1 waits for the tier: history before" in store.log_text())
        assert not waiting.done()
        tier.start()
        assert waiting.result() == expected


@pytest.mark.parametrize("topic_filter", ["line/#", pytest.param("+/1", marks=pytest.mark.nightly)])
def test_group_is_told_of_messages_that_retention_dropped(tmp_path: Path, place: TablePlace, topic_filter: str) -> None:
    """By a store that reads no tier; and of a filter whose queue the tier does not count."""
    policy = "disabled" if topic_filter == "line/#" else "not_in_log"
    with store_that_reads(policy, tmp_path, place) as (store, _):
        sent = Sent(store, 1)
        make(store, topic_filter, start="now")
        sent.more(3)
        drop(sent, store)
        expected = sent.of(topic_filter)
        ids, got, lost = {each[2] for each in expected}, set[str](), 0
        with consuming(store, topic_filter) as messages:
            while len(got) + lost < len(expected):  # retention may take more meanwhile, which is told as well
                message = next(messages)
                lost += message.lost
                got.add(message.message_id)
                assert message.ack()
        assert got <= ids
        assert len(got) + lost == len(expected)
        assert 0 < lost < len(expected)
        wait_until(lambda: sum(map(int, re.findall(r"skips (\d+) messages", store.log_text()))) == lost)


@pytest.mark.parametrize(
    ("topic_filter", "is_in_log"),
    [
        ("$own/1", False),
        ("$own/#", True),
        pytest.param("$own/1", True, marks=pytest.mark.nightly),
        pytest.param("$own/#", False, marks=pytest.mark.nightly),
    ],
)
def test_a_tier_that_counts_otherwise_is_read_by_the_stores_numbers(
    tmp_path: Path, store: StoreProcess, place: TablePlace, topic_filter: str, is_in_log: bool
) -> None:
    """It was switched on late, and has not counted the topics that `#` does not match from their beginning.
    `is_in_log`: whether the log has messages of the group's when that begins to read."""
    payloads: list[bytes] = []

    def publish_until(log_bytes: int) -> None:
        with client_of(store) as client:
            while oldest(store) < log_bytes:
                for _ in range(20):
                    payloads.append(b"%06d" % len(payloads) + bytes(3_000))
                    client.publish("$own/1", payloads[-1], compress=False)

    publish_until(400_000)
    make(store, topic_filter, start="now")
    began = info(store).next_offset
    late = Tier(tmp_path / "tier.log", store, place, serves=True)
    try:
        wait_until(lambda: late.has(1))
        publish_until(max(int(path.stem) for path in segment_paths(store.data / "log")) + 300_000)
        end = info(store).next_offset
        if not is_in_log:
            drop_all(store)
        with consuming(store, topic_filter) as messages:
            found = []
            for message in islice(messages, end - began):
                assert message.lost == 0
                found.append(message.payload)
                message.ack()
        assert sorted(found) == payloads[began:end]  # what waits in the client for longer than 1 s goes back
    finally:
        late.kill()


@pytest.mark.parametrize("topic_filter", FILTERS)
def test_a_group_does_not_wait_for_a_commit(tmp_path: Path, store: StoreProcess, topic_filter: str, seed: int) -> None:
    """The first message in the log is not in the table yet, and will not be for an hour."""
    rare = {"tier.commit_s": LONG_S, "tier.commit_bytes": 1_048_576}
    tier = Tier(tmp_path / "tier.log", store, TablePlace(str(tmp_path / "fleet"), {}), serves=True, **rare)
    sent = Sent(store, seed)
    sent.more(60)
    drop_all(store)
    sent.more(15)
    make(store, topic_filter, start="earliest")
    expected = sent.of(topic_filter)
    with consuming(store, topic_filter) as messages:
        assert taken(messages, len(expected)) == expected
    tier.kill()
