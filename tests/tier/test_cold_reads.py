"""What retention has dropped is read on in the tier, as if the log still had it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.sdk import errors as of_sdk
from penstock.sdk.message import Message
from penstock.sync import Client
from store.topics import matches
from tests.support.store_process import StoreProcess
from tests.tier.places import TablePlace
from tests.tier.tier_process import SMALL, Tier, oldest, wait_until

FILTERS = ("#", "line/#", "line/1", "+/2", "line/+")


@pytest.fixture
def tier(tmp_path: Path, store: StoreProcess, place: TablePlace) -> Iterator[Tier]:
    tier = Tier(tmp_path / "tier.log", store, place, serves=True)
    yield tier
    tier.kill()


def client_of(store: StoreProcess) -> Client:
    return Client(store.url.replace("tcp://", "penstock://"))


TAGS = ("fast", "slow", None)  # in turn


class Sent:
    """Messages that were acknowledged: topic, payload and message id of each, in the order of the log."""

    def __init__(self, store: StoreProcess, seed: int) -> None:
        self._store = store
        self._rng = random.Random(seed)
        self.messages: list[tuple[str, bytes, str]] = []

    def more(self, number: int) -> None:
        with client_of(self._store) as client:
            for _ in range(number):
                topic = f"line/{self._rng.randrange(3)}"
                payload = b"%06d" % len(self.messages) + self._rng.randbytes(3_000)
                key, tag = f"k{len(self.messages) % 10}", TAGS[len(self.messages) % 3]
                receipt = client.publish(topic, payload, key=key, tag=tag, headers={"unit": "C"})
                self.messages.append((topic, payload, receipt.message_id))

    def of(self, topic_filter: str) -> list[tuple[str, bytes, str]]:
        return [each for each in self.messages if matches(topic_filter, each[0])]


def as_sent(messages: list[Message]) -> list[tuple[str, bytes, str]]:
    return [(each.topic, each.payload, each.message_id) for each in messages]


@pytest.fixture
def sent(store: StoreProcess, tier: Tier, seed: int) -> Sent:
    """So many that retention has dropped most of them."""
    sent = Sent(store, seed)
    while oldest(store) < 800_000:
        sent.more(50)
    return sent


@pytest.mark.catalogue("N51")
def test_a_client_reads_tier_and_log_as_one(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    with client_of(store) as client:
        for topic_filter in FILTERS:
            assert as_sent(list(client.read(topic_filter))) == sent.of(topic_filter)
        of_topic = list(client.read("line/1"))
        assert [each.queue_offset for each in of_topic] == list(range(len(of_topic)))
        assert of_topic[0].headers == {"unit": "C"}
        third = sent.of("line/1")[3]
        assert as_sent(list(client.read("line/1", start="@3")))[0] == third
        assert as_sent(list(client.read("#", start=of_topic[3].log_offset)))[0] == third


def test_tier_reads_of_a_message_and_of_a_key(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    with client_of(store) as client:
        for number in (0, 1, len(sent.messages) // 2, len(sent.messages) - 1):
            assert as_sent([client.get(sent.messages[number][2])]) == [sent.messages[number]]
        of_key = [each for number, each in enumerate(sent.messages) if number % 10 == 7]
        found = client.find("k7", limit=1_000)
        assert as_sent(found) == of_key[::-1]
        assert (
            as_sent(client.find("k7", topic="line/1", limit=2))
            == [each for each in of_key if each[0] == "line/1"][:-3:-1]
        )


def test_a_read_goes_on_while_the_seam_moves(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    before = oldest(store)
    found: list[Message] = []
    with client_of(store) as client:
        for message in client.read("line/#", stop=None):
            found.append(message)
            while len(found) == 10 and oldest(store) <= before + 600_000:
                sent.more(50)
            if len(found) == len(sent.messages):
                break
    assert as_sent(found) == sent.messages


def test_a_tier_that_is_killed_is_waited_for(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    with client_of(store) as client:
        reading = iter(client.read("#"))
        found = [next(reading)]
        tier.kill()
        tier.start()
        assert as_sent(found + list(reading)) == sent.messages


def test_without_a_tier_it_says_so_and_the_log_is_read(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    tier.kill()
    with client_of(store) as client:
        with pytest.raises(of_sdk.StoreRefused, match="no `penstock tier` is connected"):
            list(client.read("#"))
        seam = oldest(store) + 64
        found = list(client.read("#", start=seam))
        assert as_sent(found) == sent.messages[-len(found) :]
        with pytest.raises(of_sdk.StoreRefused, match="no `penstock tier` is connected"):
            client.get(sent.messages[0][2])


def test_after_a_start_of_the_store_the_tier_comes_back(store: StoreProcess, tier: Tier, sent: Sent) -> None:
    store.kill()
    store.start()
    with client_of(store) as client:
        assert as_sent(list(client.read("#"))) == sent.messages


@contextmanager
def store_that_reads(policy: str, tmp_path: Path, place: TablePlace) -> Iterator[tuple[StoreProcess, Tier]]:
    """A store with `tier.reads`, and its tier."""
    store = StoreProcess(tmp_path, settings=SMALL | {"tier.reads": policy})
    tier = Tier(tmp_path / "tier.log", store, place, serves=True)
    try:
        yield store, tier
    finally:
        tier.kill()
        store.close()


@pytest.mark.catalogue("N51")
def test_all_that_the_tier_has_is_read_there_if_that_is_wanted(tmp_path: Path, place: TablePlace, seed: int) -> None:
    with store_that_reads("force", tmp_path, place) as (store, tier):
        sent = Sent(store, seed)
        sent.more(100)
        wait_until(lambda: tier.has(100))
        sent.more(10)
        with client_of(store) as client:
            assert as_sent(list(client.read("#"))) == sent.messages
            assert (
                as_sent(client.find("k3", limit=100))
                == [each for number, each in enumerate(sent.messages) if number % 10 == 3][::-1]
            )


@pytest.mark.catalogue("N51")
def test_a_store_that_reads_no_tier_has_the_history_of_its_log(tmp_path: Path, place: TablePlace, seed: int) -> None:
    with store_that_reads("disabled", tmp_path, place) as (store, _):
        sent = Sent(store, seed)
        while oldest(store) < 400_000:
            sent.more(50)
        with client_of(store) as client:
            found = as_sent(list(client.read("#")))
        assert 0 < len(found) < len(sent.messages)
        assert found == sent.messages[-len(found) :]
