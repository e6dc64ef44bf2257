"""$SYS as a client sees it that also talks to Mosquitto."""

import time
from collections.abc import Callable

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from tests.conftest import IN_ALL_TOPOLOGIES, SharedServers, StartMosquitto

pytestmark = IN_ALL_TOPOLOGIES

TIMEOUT_S = 20
LEFT_OUT = {"heap/current", "heap/maximum", "clients/active", "clients/inactive", "shared_subscriptions/count"}
"""What Mosquitto has beside: memory is a metric of ours, two are deprecated, shared subscriptions are not offered."""
STORES_OWN = {
    *("clients/disconnected", "clients/expired", "retained messages/count"),
    *("messages/stored", "store/messages/bytes", "store/messages/count"),
}
"""What a gateway whose store is another process does not say."""


class SysReader:
    """Collects what a server says of itself."""

    def __init__(self, port: int) -> None:
        self.retained: dict[str, str] = {}
        self.live: dict[str, str] = {}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self.client.on_connect = lambda client, *_: client.subscribe("$SYS/#", 1)
        self.client.on_message = self._on_message
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def _on_message(self, _: paho.Client, __: object, message: paho.MQTTMessage) -> None:
        found = self.retained if message.retain else self.live
        found[message.topic.removeprefix("$SYS/broker/")] = message.payload.decode()

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, (self.retained, self.live)
            time.sleep(0.02)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_the_topics_are_those_of_a_mosquitto(
    shared_server: SharedServers, start_mosquitto: StartMosquitto, topology: str
) -> None:
    left_out = LEFT_OUT if topology == "one process" else LEFT_OUT | STORES_OWN
    theirs = SysReader(start_mosquitto("sys_interval 1"))
    ours = SysReader(shared_server(settings={"gateway.sys_interval_s": 1}).port)
    try:
        theirs.wait(
            lambda: {"uptime", "load/bytes/sent/15min", "version"} <= theirs.live.keys() | theirs.retained.keys()
        )
        ours.wait(lambda: "version" in ours.retained and "load/connections/15min" in ours.retained)
        assert {**theirs.live, **theirs.retained}.keys() - left_out <= ours.retained.keys()
        ours.wait(lambda: {"uptime", "bytes/received", "load/bytes/sent/1min"} <= ours.live.keys())
        assert ours.live["uptime"].split()[1:] == theirs.retained["uptime"].split()[1:] == ["seconds"]
    finally:
        theirs.close()
        ours.close()


def answer_to_publish(port: int) -> int:
    """The reason code of the PUBACK for a message to a $SYS topic."""
    answers: list[ReasonCode] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_connect = lambda client, *_: client.publish("$SYS/broker/version", b"mine", 1)
    client.on_publish = lambda _, __, ___, reason_code, ____: answers.append(reason_code)
    client.connect("127.0.0.1", port)
    client.loop_start()
    deadline = time.monotonic() + TIMEOUT_S
    while not answers:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    client.disconnect()
    client.loop_stop()
    return int(answers[0].value)


def test_a_publisher_is_refused_as_by_mosquitto(shared_server: SharedServers, mosquitto_port: int) -> None:
    assert answer_to_publish(shared_server().port) == answer_to_publish(mosquitto_port) == 0x87
