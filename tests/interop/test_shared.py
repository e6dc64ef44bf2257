"""Shared subscriptions with other people's clients; MQTT clients and an SDK consumer in one group."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.mqtt.packets import PubAck, Publish
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.cluster import Cluster
from store.state.group_settings import GroupSettings
from tests.conftest import IN_ALL_TOPOLOGIES, SharedServers
from tests.interop.programs import PUBLISHERS, LineSubscriber, PahoClient, mark_ready, mosquitto_sub, penstock, run
from tests.support.mqtt_packet_client import Device
from tests.support.store_protocol_consumer import GroupConsumer
from tests.support.stores import wait_until

MESSAGES = 120
REFUSED = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class Member:
    """A client that notes what it gets, in a thread of its own where it has none."""

    def __init__(self, client: PahoClient | LineSubscriber) -> None:
        self.payloads: list[bytes] = []
        self._client = client
        if isinstance(client, LineSubscriber):
            self._thread = threading.Thread(target=self._read, args=(client,), daemon=True)
            self._thread.start()

    def _read(self, client: LineSubscriber) -> None:
        while line := client._line():
            self.payloads.append(line.removesuffix(b"\n").partition(b" ")[2])

    def took(self) -> list[bytes]:
        if isinstance(self._client, PahoClient):
            return [bytes(message.payload) for message in self._client.raw_messages(0)]
        return self.payloads

    def leave(self) -> None:
        if isinstance(self._client, PahoClient):
            self._client.leave()
        else:
            self._client.process.kill()
            self._thread.join()
            self._client.kill()


Join = Callable[..., Member]


@pytest.fixture
def join() -> Iterator[Join]:
    members: list[Member] = []

    def join(kind: str, port: int, topic_filter: str, qos: int, version: int) -> Member:
        if kind == "paho":
            client = PahoClient(port, version).connect().subscribe(topic_filter, qos)
            members.append(Member(client))
        else:
            members.append(Member(mosquitto_sub(port, topic_filter, qos, version=version)))
        return members[-1]

    yield join
    for member in members:
        member.leave()


def taken_by_all(members: list[Member]) -> list[bytes]:
    return sorted(payload for member in members for payload in member.took())


@IN_ALL_TOPOLOGIES
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.catalogue("G25")
def test_stock_clients_share_what_stock_clients_send(shared_server: SharedServers, join: Join, qos: int) -> None:
    server = shared_server()
    mark_ready(server.port)
    members = [
        join(kind, server.port, f"$share/g/work{qos}/+", qos, version)
        for kind in ("paho", "mosquitto")
        for version in (4, 5)
    ]
    sent: list[bytes] = []
    for name in ("mosquitto-3", "mosquitto-5", "paho-5"):
        payloads = [f"{name}-{i}".encode() for i in range(MESSAGES)]
        PUBLISHERS[name](server.port, f"work{qos}/1", payloads, qos)
        sent += payloads
    wait_until(lambda: len(taken_by_all(members)) >= len(sent))
    assert taken_by_all(members) == sorted(sent)
    assert all(member.took() for member in members)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    patient = {"wire.lease_ms": 60_000}  # a GroupConsumer says nothing while a program is started
    cluster = Cluster(tmp_path, settings=patient, wires=False)
    yield cluster
    cluster.close()


@pytest.mark.catalogue("G25", "K40")
def test_mqtt_clients_and_an_sdk_consumer_share_one_group(cluster: Cluster, join: Join) -> None:
    here, there = cluster.ports
    mark_ready(here)
    members = [
        join("paho", here, "$share/billing/line/#", 1, 5),
        join("mosquitto", there, "$share/billing/line/#", 1, 4),
    ]
    consumer = GroupConsumer(cluster.store_url, "app", "billing", "line/#")
    (shown,) = json.loads(run(*penstock("group", "show", "billing", "--store", cluster.store_url, "--json")))
    assert (shown["topic_filter"], len(shown["consumers"])) == ("line/#", 3)
    sent = [b"%03d" % number for number in range(MESSAGES)]
    popped: list[bytes] = []

    def consume() -> None:
        while len(popped) + len(taken_by_all(members)) < MESSAGES:
            handed = consumer.pop(10, wait_ms=100)
            assert consumer.ack(handed) == []
            popped.extend(each.payload for each in handed)

    with ThreadPoolExecutor() as pool:
        consuming = pool.submit(consume)
        for at in range(0, MESSAGES, 12):
            PUBLISHERS["mosquitto-5"](there, "line/1/temp", sent[at : at + 12], 1)
        consuming.result()
    assert sorted(popped + taken_by_all(members)) == sent
    assert popped
    assert all(member.took() for member in members)
    consumer.close()


def test_an_sdk_consumer_goes_on_where_mqtt_clients_left(cluster: Cluster, join: Join) -> None:
    """Its settings count from then on."""
    here, _ = cluster.ports
    mark_ready(here)
    first = join("paho", here, "$share/g/t", 1, 5)
    PUBLISHERS["mosquitto-5"](here, "t", [b"1"], 1)
    wait_until(lambda: first.took() == [b"1"])
    first.leave()
    PUBLISHERS["mosquitto-5"](here, "t", [b"2", b"3"], 1)
    consumer = GroupConsumer(cluster.store_url, "app", "g", "t", GroupSettings(max_deliveries=3))
    popped = consumer.pop(10, 10_000)
    assert [each.payload for each in popped] == [b"2", b"3"]
    assert consumer.info().settings.max_deliveries == 3
    consumer.close()


@IN_ALL_TOPOLOGIES
def test_a_beginning_that_no_queue_has_is_refused(shared_server: SharedServers) -> None:
    """A whole queue gives it, and who asks for none is let in as ever."""
    server = shared_server()
    publisher, member = Device(server.port, "publisher"), Device(server.port, "member")
    for each in (publisher, member):
        each.connect()
    for number in range(3):
        publisher.publish("begins/t", b"%d" % number, qos=1)
        publisher.next(PubAck)
    for topic_filter in ("#", "begins/+", "+/t"):
        for start in ("earliest", "-1h"):
            assert member.subscribe(f"$share/g/{topic_filter}", history=start) is REFUSED
        assert member.subscribe(f"$share/g/{topic_filter}") is ReasonCode.GRANTED_QOS_0
    for topic_filter in ("begins/t", "begins/#"):
        assert member.subscribe(f"$share/g/{topic_filter}", history="earliest") is ReasonCode.GRANTED_QOS_0
        assert [member.next(Publish).payload for _ in range(3)] == [b"0", b"1", b"2"]
