"""Flows that lead to Kafka, with a real broker: what records are like, and what happens when something is away."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sync import Client
from tests.interop.programs import penstock, run
from tests.support.flows_fixtures import store as store
from tests.support.flows_part import FlowsPart, letters
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_relay import CREATE_TOPICS, DESCRIBE_CONFIGS, KafkaRelay
from tests.support.kafka_topics import committed, headers, values
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 60


def wait_until(condition: Callable[[], Any]) -> None:
    until(condition, PATIENCE_S)


@pytest.fixture
def client(store: StoreProcess) -> Iterator[Client]:
    with Client(store.url.replace("tcp://", "penstock://")) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"plant-{uuid.uuid4().hex}"


@pytest.fixture
def flows(store: StoreProcess, tmp_path: Path) -> Iterator[Any]:
    parts: list[FlowsPart] = []

    def start(text: str) -> FlowsPart:
        folder = tmp_path / f"flows-{len(parts)}"
        folder.mkdir()
        parts.append(FlowsPart(store, folder, text))
        return parts[-1]

    yield start
    for part in parts:
        part.kill()


def flow(kafka: KafkaBroker, topic: str, more: str = "") -> str:
    """The flow's names in Kafka are of this test only."""
    return f"""
        [flow.out]
        from = "plant/#"
        to = "kafka://{kafka.url}/{topic}"
        timeout_s = 3
        kafka.id = "{topic}.done"
        {more}
    """


ONCE = "kafka.exactly_once = true"


def test_records_are_cloudevents_with_the_topic_as_their_key(
    kafka: KafkaBroker, topic: str, flows: Any, client: Client
) -> None:
    kafka.create_topic(topic, partitions=3)
    receipts = [client.publish(f"plant/{i % 5}/temp", json.dumps({"celsius": i})) for i in range(20)]
    flows(flow(kafka, topic, 'start = "earliest"'))
    wait_until(lambda: len(committed(kafka.url, topic)) == 20)
    found = committed(kafka.url, topic)
    events = {(event := json.loads(each.value() or b""))["id"]: event for each in found}
    assert sorted(events) == sorted(receipt.message_id for receipt in receipts)
    assert events[receipts[7].message_id]["data"] == {"celsius": 7}
    assert {headers(each)["content-type"] for each in found} == {"application/cloudevents+json"}
    assert {each.key() for each in found} == {b"plant/%d/temp" % i for i in range(5)}
    assert len({(each.key(), each.partition()) for each in found}) == 5
    # What Kafka's own clients make of these keys: murmur2, modulo the number of partitions.
    partitions = {each.key(): each.partition() for each in found}
    assert partitions == {b"plant/%d/temp" % i: murmur2(b"plant/%d/temp" % i) % 3 for i in range(5)}


def test_binary_and_raw_records(kafka: KafkaBroker, topic: str, flows: Any, client: Client) -> None:
    for name in (f"{topic}.b", f"{topic}.r"):
        kafka.create_topic(name)
    mapped = 'map = { topic = "p-{levels[1]}", key = "{levels[1]}", headers = { site = "{levels[1]}" } }\n'
    start = 'start = "earliest"\n'
    receipt = client.publish("plant/7/temp", b"\0\1", content_type="application/x-own")
    flows(flow(kafka, f"{topic}.b", f'{mapped}{start}format = "cloudevents-binary"'))
    flows(flow(kafka, f"{topic}.r", f'{mapped}{start}format = "raw"').replace("flow.out", "flow.raw"))
    wait_until(lambda: values(kafka.url, f"{topic}.b") and values(kafka.url, f"{topic}.r"))
    ((binary,), (raw,)) = committed(kafka.url, f"{topic}.b"), committed(kafka.url, f"{topic}.r")
    assert (binary.key(), binary.value(), raw.key(), raw.value()) == (b"7", b"\0\1", b"7", b"\0\1")
    said = headers(binary)
    assert said["ce_id"] == receipt.message_id
    assert (said["ce_subject"], said["ce_site"], said["content-type"]) == ("p-7", "7", "application/x-own")
    assert headers(raw) == {"penstock-id": receipt.message_id, "site": "7", "content-type": "application/x-own"}


@pytest.mark.parametrize("mode", ["", ONCE])
def test_message_that_kafka_refuses_becomes_a_dead_letter_alone(
    kafka: KafkaBroker, topic: str, flows: Any, client: Client, mode: str
) -> None:
    kafka.create_topic(topic, max__message__bytes=2_000)
    large = random.Random(5).randbytes(10_000)  # also when it is compressed
    client.publish_many([("plant/1/temp", b"%d" % i if i != 5 else large) for i in range(10)])
    flows(flow(kafka, topic, f'start = "earliest"\nformat = "raw"\n{mode}'))
    wait_until(lambda: len(values(kafka.url, topic)) == 9 and letters(client))
    assert sorted(values(kafka.url, topic)) == [b"%d" % i for i in range(10) if i != 5]
    ((letter, reason),) = letters(client)
    assert letter == "$dead/flow.out/plant/1/temp"
    assert "size" in reason.lower()


def test_a_topic_by_message_and_one_that_is_not_there(
    kafka: KafkaBroker, topic: str, flows: Any, client: Client
) -> None:
    kafka.create_topic(f"{topic}.1")
    for level in ("1", "2", "a b"):
        client.publish(f"plant/{level}/temp", level)
    text = flow(kafka, "", f'start = "earliest"\nformat = "raw"\nmap.topic = "{topic}.{{levels[1]}}"')
    flows(text.replace('"kafka.id = ".done"', "").replace('kafka.id = ".done"', f'kafka.id = "{topic}.done"'))
    wait_until(lambda: len(letters(client)) == 2)
    assert values(kafka.url, f"{topic}.1") == [b"1"]
    reasons = dict(letters(client))
    assert "is no topic of Kafka" in reasons["$dead/flow.out/plant/a b/temp"]
    assert "nknown" in reasons["$dead/flow.out/plant/2/temp"]


@pytest.mark.parametrize("mode", ["", ONCE])
def test_a_topic_that_is_not_there_yet_is_waited_for(
    kafka: KafkaBroker, topic: str, flows: Any, client: Client, mode: str
) -> None:
    client.publish_many([("plant/1/temp", b"%d" % i) for i in range(100)])
    started = flows(flow(kafka, topic, f'start = "earliest"\nformat = "raw"\n{mode}'))
    wait_until(lambda: f"topic {topic}:" in started.log_text())
    kafka.create_topic(topic)
    wait_until(lambda: len(set(values(kafka.url, topic))) == 100)
    if mode:  # at least once a part may have come while the topic was made, and comes again
        assert values(kafka.url, topic) == [b"%d" % i for i in range(100)]
    assert letters(client) == []


def test_a_broker_that_hangs_and_one_that_is_killed(kafka: KafkaBroker, topic: str, flows: Any, client: Client) -> None:
    kafka.create_topic(topic)
    started = flows(flow(kafka, topic, f'start = "earliest"\nformat = "raw"\n{ONCE}'))
    number = 0

    def publish() -> None:
        nonlocal number
        client.publish_many([("plant/1/temp", b"%d" % i) for i in range(number, number + 500)])
        number += 500

    publish()
    wait_until(lambda: len(values(kafka.url, topic)) == number)
    kafka.stop()
    try:
        publish()
        wait_until(lambda: "it waits for it" in started.log_text())
    finally:
        kafka.cont()
    wait_until(lambda: len(values(kafka.url, topic)) >= number)
    publish()
    kafka.kill()
    publish()
    kafka.start()
    wait_until(lambda: len(values(kafka.url, topic)) >= number)
    assert values(kafka.url, topic) == [b"%d" % i for i in range(number)]
    assert letters(client) == []


def test_a_request_that_has_no_answer_is_made_again(kafka: KafkaBroker, topic: str, flows: Any, client: Client) -> None:
    """The first process asks Kafka to make the flow's topic, the second one what the topic is set to."""
    kafka.create_topic(topic)
    relay = KafkaRelay(kafka.node.relay_port, kafka.node.relayed_port)
    text = flow(kafka, topic, f'start = "earliest"\nformat = "raw"\n{ONCE}').replace(kafka.url, relay.url)

    def hold(kind: int, payload: bytes, expected: list[bytes]) -> None:
        relay.held = {kind}
        client.publish("plant/1/temp", payload)
        started = flows(text)
        wait_until(relay.was_held.is_set)
        wait_until(lambda: "it did not answer in time; it waits for it" in started.log_text())
        relay.held = set()
        relay.was_held.clear()
        wait_until(lambda: values(kafka.url, topic) == expected)
        started.kill()

    try:
        hold(CREATE_TOPICS, b"1", [b"1"])
        hold(DESCRIBE_CONFIGS, b"2", [b"1", b"2"])
    finally:
        relay.close()


def test_a_second_process_takes_over_and_a_reset_sends_again(
    kafka: KafkaBroker, topic: str, flows: Any, client: Client, store: StoreProcess
) -> None:
    kafka.create_topic(topic)
    text = flow(kafka, topic, f'start = "earliest"\nformat = "raw"\n{ONCE}')
    first = flows(text)
    client.publish_many([("plant/1/temp", b"%d" % i) for i in range(500)])
    wait_until(lambda: len(values(kafka.url, topic)) == 500)
    second = flows(text)
    number = 500

    def first_is_over() -> bool:
        nonlocal number
        client.publish("plant/1/temp", b"%d" % number)
        number += 1
        return first.process.poll() is not None

    wait_until(first_is_over)
    assert "it has taken over" in first.log_text()
    wait_until(lambda: len(values(kafka.url, topic)) >= number)
    assert Counter(values(kafka.url, topic)) == Counter(b"%d" % i for i in range(number))
    run(*penstock("group", "reset", "flow.out", "--to", "earliest", "--store", store.url))
    wait_until(lambda: len(values(kafka.url, topic)) >= 2 * number)
    second.restart()
    client.publish("plant/1/temp", b"last")
    wait_until(lambda: b"last" in values(kafka.url, topic))
    assert Counter(values(kafka.url, topic)) == Counter([b"%d" % i for i in range(number)] * 2 + [b"last"])


def murmur2(data: bytes) -> int:
    """The hash of Kafka's Java clients, without its sign (org.apache.kafka.common.utils.Utils)."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k ^= k >> 24
        h = (h * m & mask) ^ (k * m & mask)
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return (h ^ (h >> 15)) & 0x7FFFFFFF
