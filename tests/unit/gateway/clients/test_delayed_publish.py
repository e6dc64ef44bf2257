"""`$delayed/SECONDS/TOPIC`: a PUBLISH that is delivered later, to the topic that it names."""

import pytest

from gateway.mqtt.packets import ConnAck, Disconnect, PubAck, PubComp, PubRec, PubRel, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, SlowDisk
from tests.unit.conftest import StartBench

VERSIONS = pytest.mark.parametrize("version", [4, 5])


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_delayed_message_comes_when_it_is_due_and_not_before(bench: Bench, version: int, qos: int) -> None:
    subscriber = bench.connect("s", version)
    subscriber.subscribe("line/#", qos=2)
    everything = bench.connect("all", version)
    everything.subscribe("#", qos=2)
    client = bench.connect("c", version)
    client.publish_whole("$delayed/30/line/7", b"later", qos)
    client.publish_whole("line/7", b"now")
    assert subscriber.take() == [b"now"]
    bench.pass_time(29)
    assert subscriber.take() == []
    bench.pass_time(2)
    (message,) = subscriber.messages()
    assert (message.topic_name, message.payload, message.qos) == ("line/7", b"later", qos)
    assert everything.take() == [b"now", b"later"]
    bench.pass_time(1_000)
    assert everything.take() == []


@VERSIONS
def test_a_durable_session_gets_it_after_a_restart(bench: Bench, version: int) -> None:
    bench.durable("s", version).subscribe("line/#", qos=1)
    bench.connect("c", version).publish_whole("$delayed/30/line/7", b"later", 1)
    bench.restart()
    bench.pass_time(31)
    assert bench.durable("s", version).take() == [b"later"]
    bench.pass_time(1)
    bench.restart()
    bench.pass_time(31)
    assert bench.durable("s", version).take() == []


@VERSIONS
def test_delayed_message_is_retained_when_it_is_due(bench: Bench, version: int) -> None:
    bench.connect("c", version).publish_whole("$delayed/30/line/7", b"later", 1, retain=True)
    early = bench.connect("early", version)
    early.subscribe("line/7")
    assert early.take() == []
    bench.pass_time(31)
    late = bench.connect("late", version)
    late.subscribe("line/7")
    assert [(message.payload, message.retain) for message in early.messages() + late.messages()] == [
        (b"later", False),
        (b"later", True),
    ]


def test_its_expiry_begins_when_it_is_due(bench: Bench) -> None:
    subscriber = bench.connect("s")
    subscriber.subscribe("t", qos=1)
    bench.connect("c").publish("$delayed/30/t", b"x", message_expiry_interval=10)
    bench.pass_time(31)
    (message,) = subscriber.messages()
    assert message.properties.message_expiry_interval in (9, 10)


def test_an_alias_stands_for_the_whole_name(bench: Bench) -> None:
    subscriber = bench.connect("s")
    subscriber.subscribe("t")
    client = bench.connect("c")
    client.publish("$delayed/30/t", b"1", topic_alias=1)
    client.publish("", b"2", topic_alias=1)
    assert subscriber.take() == []
    bench.pass_time(31)
    assert subscriber.take() == [b"1", b"2"]


def test_a_qos_2_one_is_stored_once(bench: Bench) -> None:
    subscriber = bench.connect("s")
    subscriber.subscribe("t")
    client = bench.durable("c")
    message = client.publish_packet("$delayed/30/t", b"x", 2)
    client.send(message)
    client.lose()
    bench.restart()
    subscriber = bench.connect("s")
    subscriber.subscribe("t")
    client = bench.durable("c")
    client.send(message, PubRel(message.packet_id or 0))
    assert client.received() == [PubRec(message.packet_id or 0), PubComp(message.packet_id or 0)]
    bench.pass_time(31)
    assert subscriber.take() == [b"x"]


def test_delayed_message_is_acknowledged_once_it_is_safe(start_bench: StartBench, disk: SlowDisk) -> None:
    bench = start_bench("sync")
    client = bench.connect("c")
    client.publish("$delayed/30/t", b"x", 1)
    assert client.received() == []
    disk.finish()
    bench.wait_safe()
    assert client.received() == [PubAck(1)]


@VERSIONS
@pytest.mark.parametrize(
    "name",
    ["$delayed/", "$delayed/5", "$delayed/5/", "$delayed//t", "$delayed/x/t", "$delayed/-1/t", "$delayed/ 5/t",
     "$delayed/1.5/t", "$delayed/٣/t", "$delayed/31536001/t", "$delayed/99999999999/t"],
)  # fmt: skip
def test_a_name_that_is_none(bench: Bench, version: int, name: str) -> None:
    client = bench.connect("c", version)
    client.publish(name, b"x", 1)
    assert client.is_closed
    if version == 5:
        assert client.one(Disconnect).reason_code == ReasonCode.TOPIC_NAME_INVALID
    assert bench.stored() == []


@pytest.mark.parametrize("name", ["$delayed/5/$SYS/x", "$delayed/5/$delayed/5/t", "$delayed", "$dead/5/t"])
def test_delayed_publish_to_the_servers_topics_is_refused(bench: Bench, name: str) -> None:
    client = bench.connect("c")
    client.publish(name, b"x", 1)
    assert client.one(PubAck).reason_code == ReasonCode.NOT_AUTHORIZED
    assert bench.stored() == []


def test_a_delay_of_nothing(bench: Bench) -> None:
    subscriber = bench.connect("s")
    subscriber.subscribe("t")
    bench.connect("c").publish("$delayed/0/t", b"x")
    bench.pass_time(1)
    assert subscriber.take() == [b"x"]


def test_a_will_is_not_delayed_this_way(bench: Bench) -> None:
    client = bench.client()
    connack = client.connect("c", will=Will("$delayed/5/t", b"x"))
    assert isinstance(connack, ConnAck)
    assert connack.reason_code == ReasonCode.NOT_AUTHORIZED
