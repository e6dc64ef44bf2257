"""Flows from Kafka: a real broker, `penstock flow run`, and a real store."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

from penstock.flows.sources.kafka import MOST_IN_HAND
from penstock.sync import Client
from tests.interop.test_console_process import passwords
from tests.support.flows_fixtures import client as client
from tests.support.flows_part import FlowsPart
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_flows import flow_from, new_topic, produce, producer, stored
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 120
SMALL_FRAMES = {
    "wire.max_frame_bytes": 262_144,
    "wire.credit_bytes": 262_144,
    "gateway.maximum_packet_size_bytes": 30_000,
}
Start = Callable[..., FlowsPart]


def wait_until(condition: Callable[[], Any]) -> None:
    until(condition, PATIENCE_S)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path, settings=SMALL_FRAMES)
    yield store
    store.close()


@pytest.fixture
def start(store: StoreProcess, tmp_path: Path) -> Iterator[Start]:
    parts: list[FlowsPart] = []

    def start(text: str) -> FlowsPart:
        folder = tmp_path / f"flows-{len(parts)}"
        folder.mkdir()
        parts.append(FlowsPart(store, folder, text))
        return parts[-1]

    yield start
    for part in parts:
        part.kill()


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return new_topic(kafka)


def numbers(*of: int) -> list[bytes]:
    return [b"%d" % i for i in range(*of)]


@pytest.mark.catalogue("Q65")
def test_records_become_messages(start: Start, kafka: KafkaBroker, topic: str, client: Client) -> None:
    writing = producer(kafka)
    headers: list[tuple[str, str | bytes | None]] = [
        ("unit", b"C"),
        ("raw", b"\xff"),
        ("content-type", b"application/json"),
    ]
    writing.produce(topic, b'{"celsius": 95}', b"m-7", headers=headers, timestamp=1_700_000_000_000)
    writing.produce(topic, b'{"celsius": 20}', b"m-8")
    writing.produce(topic, None, b"m-9", headers=[("tombstone", b"1")])
    writing.flush(PATIENCE_S)
    more = """
    where = 'key != "m-8"'
    map = { topic = 'alarms/{key}', headers = { place = '{topic}/{partition}@{offset}', at = '{time}' } }
    """
    start(flow_from(kafka, topic, more))
    wait_until(lambda: len(list(client.read("alarms/#"))) == 2)
    hot, tombstone = client.read("alarms/#")
    assert (hot.topic, hot.payload, hot.key, hot.content_type) == (
        "alarms/m-7",
        b'{"celsius": 95}',
        "m-7",
        "application/json",
    )
    assert hot.headers == {"unit": "C", "place": f"{topic}/0@0", "at": "2023-11-14T22:13:20Z"}
    assert (tombstone.topic, tombstone.payload) == ("alarms/m-9", b"")


def test_a_restart_goes_on_where_the_store_is(start: Start, kafka: KafkaBroker, topic: str, client: Client) -> None:
    produce(kafka, topic, numbers(1000))
    flows = start(flow_from(kafka, topic))
    wait_until(lambda: len(stored(client).get("in/0", ())) == 1000)
    flows.restart()
    produce(kafka, topic, numbers(1000, 1500))
    wait_until(lambda: len(stored(client)["in/0"]) >= 1500)
    flows.terminate()
    assert stored(client)["in/0"] == numbers(1500)


def test_only_what_is_committed_comes(start: Start, kafka: KafkaBroker, topic: str, client: Client) -> None:
    start(flow_from(kafka, topic))
    writing = Producer({"bootstrap.servers": kafka.url, "transactional.id": topic, "log_level": 0})
    writing.init_transactions(PATIENCE_S)
    for value, is_kept in ((b"1", True), (b"aborted", False), (b"2", True)):
        writing.begin_transaction()
        writing.produce(topic, value)
        writing.flush(PATIENCE_S)
        (writing.commit_transaction if is_kept else writing.abort_transaction)(PATIENCE_S)
    wait_until(lambda: stored(client).get("in/0") == [b"1", b"2"])


def test_a_bad_record_becomes_a_dead_letter_and_the_next_ones_come(
    start: Start, kafka: KafkaBroker, client: Client
) -> None:
    topic = new_topic(kafka, max__message__bytes=4 << 20)
    large = b'{"to": "a", "padding": "%s"}' % random.Random(1).randbytes(400_000).hex().encode()
    values = [b'{"to": "a"}', b"nonsense", b'{"to": "$SYS/x"}', large, b'{"to": "a+"}', b'{"to": "b"}']
    writing = Producer({"bootstrap.servers": kafka.url, "message.max.bytes": 4 << 20})
    for value in values:
        writing.produce(topic, value)
    assert writing.flush(PATIENCE_S) == 0
    start(flow_from(kafka, topic, "map = { topic = '{json.to}' }"))
    wait_until(lambda: list(client.read("b")))
    assert [message.payload for message in client.read("a")] == values[:1]
    letters = list(client.read("$flows/orders/dead/#"))
    assert {letter.topic for letter in letters} == {f"$flows/orders/dead/{topic}"}
    found = [letter.headers for letter in letters]
    assert [headers["kafka-offset"] for headers in found] == ["1", "2", "3", "4"]
    reasons = [headers["penstock-reason"] for headers in found]
    assert "is not JSON" in reasons[0]
    assert "$SYS" in reasons[1]
    assert "raise wire.max_frame_bytes" in reasons[2]
    assert "without + and #" in reasons[3]
    assert [letter.payload for letter in letters] == [b"nonsense", values[2], b"", values[4]]


def test_kafka_and_store_may_be_away(
    start: Start, kafka: KafkaBroker, topic: str, store: StoreProcess, client: Client
) -> None:
    kafka.kill()
    try:
        flows = start(flow_from(kafka, topic))
        wait_until(lambda: "it waits for it" in flows.log_text())
    finally:
        kafka.start()
    produce(kafka, topic, numbers(100))
    wait_until(lambda: stored(client).get("in/0") == numbers(100))
    store.kill()
    produce(kafka, topic, numbers(100, 200))
    store.start()
    wait_until(lambda: stored(client).get("in/0") == numbers(200))
    kafka.kill()
    kafka.start()
    produce(kafka, topic, numbers(200, 300))
    wait_until(lambda: stored(client).get("in/0") == numbers(300))


def test_new_partitions_are_picked_up(start: Start, kafka: KafkaBroker, topic: str, client: Client) -> None:
    start(flow_from(kafka, topic, 'start = "now"'))
    wait_until(lambda: probe(kafka, topic, client))
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    produce(kafka, topic, numbers(10), partition=2)
    wait_until(lambda: stored(client).get("in/2") == numbers(10))


def probe(kafka: KafkaBroker, topic: str, client: Client) -> bool:
    """Whether a record comes that is written now."""
    produce(kafka, topic, [b"probe"])
    return bool(stored(client).get("in/0"))


def test_a_flow_may_begin_now(start: Start, kafka: KafkaBroker, topic: str, client: Client) -> None:
    produce(kafka, topic, numbers(50))
    flows = start(flow_from(kafka, topic, 'start = "now"'))
    wait_until(lambda: probe(kafka, topic, client))
    flows.kill()
    produce(kafka, topic, [b"while it was away"])
    flows.start()
    wait_until(lambda: stored(client)["in/0"][-1] == b"while it was away")
    assert set(stored(client)["in/0"]) == {b"probe", b"while it was away"}


def test_records_deleted_unread_by_kafka_are_counted(
    start: Start, kafka: KafkaBroker, topic: str, client: Client
) -> None:
    produce(kafka, topic, numbers(10))
    flows = start(flow_from(kafka, topic))
    wait_until(lambda: stored(client).get("in/0") == numbers(10))
    flows.kill()
    produce(kafka, topic, numbers(10, 100))
    admin, all_before = kafka.admin(), TopicPartition(topic, 0, 70)
    admin.delete_records([all_before])[all_before].result(PATIENCE_S)
    flows.start()
    wait_until(lambda: stored(client)["in/0"] == [*numbers(10), *numbers(70, 100)])
    assert "60 records were deleted before they were read, from offset 10 on; it goes on at 70" in flows.log_text()


def test_a_topic_made_anew_begins_anew(start: Start, kafka: KafkaBroker, topic: str, client: Client) -> None:
    produce(kafka, topic, numbers(10))
    flows = start(flow_from(kafka, topic))
    wait_until(lambda: stored(client).get("in/0") == numbers(10))
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics)
    kafka.create_topic(topic)
    produce(kafka, topic, [b"anew"])
    wait_until(lambda: stored(client)["in/0"] == [*numbers(10), b"anew"])
    assert "was made anew" in flows.log_text()


def command(store: StoreProcess, *arguments: str) -> Any:
    command = [sys.executable, "-P", "-m", "penstock", *arguments, "--store", store.url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_flow_from_kafka_is_listed_and_pauses(
    start: Start, kafka: KafkaBroker, topic: str, client: Client, store: StoreProcess
) -> None:
    def row() -> dict[str, Any]:
        (found,) = json.loads(command(store, "flow", "list", "--json"))
        assert isinstance(found, dict)
        return found

    produce(kafka, topic, numbers(100))
    flows = start(flow_from(kafka, topic))
    wait_until(lambda: row()["sent"] == 100)
    wait_until(lambda: row()["lag"] == 0)
    assert (row()["flow"], row()["consumers"], row()["errors"]) == ("orders", 1, 0)
    assert "orders over $flows/orders/source is paused" in command(store, "flow", "pause", "orders")
    wait_until(lambda: "it is paused" in flows.log_text())
    produce(kafka, topic, numbers(100, 150))
    wait_until(lambda: row()["lag"] == 50)
    assert row()["paused"]
    flows.restart()
    wait_until(lambda: row()["consumers"] == 1 and row()["sent"] == 0)
    wait_until(lambda: row()["lag"] == 50)
    assert stored(client)["in/0"] == numbers(100)
    command(store, "flow", "resume", "orders")
    wait_until(lambda: len(stored(client)["in/0"]) == 150)
    assert stored(client)["in/0"] == numbers(150)


def test_partitions_that_the_store_refuses_hold_up_no_other(kafka: KafkaBroker, tmp_path: Path) -> None:
    """One has many records, one has large ones."""
    file = passwords(tmp_path, mill="s3c")
    (tmp_path / "secret").write_text("s3c")
    (tmp_path / "secret").chmod(0o600)
    store = StoreProcess(tmp_path, settings={"auth.password_file": file, "quota.user_topics": 1})
    topic = new_topic(kafka, partitions=3)
    as_user = {"PENSTOCK_FLOWS__USER": "mill", "PENSTOCK_FLOWS__PASSWORD_FILE": str(tmp_path / "secret")}
    produce(kafka, topic, numbers(1), partition=1)
    flows = FlowsPart(store, tmp_path, flow_from(kafka, topic), as_user)
    try:
        with Client(store.url.replace("tcp://", "penstock://"), user="mill", password="s3c") as client:
            wait_until(lambda: len(stored(client).get("in/1", ())) == 1)
            produce(kafka, topic, numbers(MOST_IN_HAND + 10_000))
            produce(kafka, topic, [b"%06d" % i + bytes(50_000) for i in range(1_500)], partition=2)
            refused = [f"partition {number}: the store refused: quota.user_topics" for number in (0, 2)]
            wait_until(lambda: all(each in flows.log_text() for each in refused))
            produce(kafka, topic, numbers(1, MOST_IN_HAND), partition=1)
            wait_until(lambda: len(stored(client)["in/1"]) == MOST_IN_HAND)
            assert stored(client) == {"in/1": numbers(MOST_IN_HAND)}
    finally:
        flows.kill()
        store.close()


def test_two_processes_of_a_flow_store_nothing_twice(start: Start, kafka: KafkaBroker, client: Client) -> None:
    topic = new_topic(kafka, 3)
    text = flow_from(kafka, topic)
    start(text)
    start(text)
    for begin in range(0, 3000, 100):
        for partition in range(3):
            produce(kafka, topic, numbers(begin, begin + 100), partition)
    expected = {f"in/{partition}": numbers(3000) for partition in range(3)}
    wait_until(lambda: sum(map(len, stored(client).values())) >= 9000)
    assert stored(client) == expected


def test_flow_test_shows_the_newest_records(
    kafka: KafkaBroker, topic: str, store: StoreProcess, client: Client, tmp_path: Path
) -> None:
    produce(kafka, topic, [b'{"n": %d}' % i for i in range(200)])
    produce(kafka, topic, [b"nonsense"])
    file = tmp_path / "flows.toml"
    file.write_text(flow_from(kafka, topic, "where = 'json.n > 150'"))
    command = [sys.executable, "-P", "-m", "penstock", "flow", "test", str(file), "--store", store.url, "--json"]
    (trial,) = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (trial["looked_at"], trial["passed"], trial["left_out"], trial["dead"]) == (100, 49, 50, 1)
    assert trial["messages"][-2]["becomes"] == "in/0"
    assert trial["messages"][-2]["topic"] == f"{topic}/0@199"
    assert stored(client) == {}
