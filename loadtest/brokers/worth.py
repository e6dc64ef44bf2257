"""Measures the worth of an acknowledgement: how many acknowledged messages survive a SIGKILL of the broker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from loadtest.brokers import streams
from loadtest.brokers.kinds import RunningBroker
from loadtest.devices.address import BrokerAddress
from loadtest.errors import LoadTestError
from loadtest.report.results import Worth

MESSAGES = 2_000
IN_FLIGHT = 200
QUIET_S = 2.0
PATIENCE_S = 60.0
TOPIC = "load-test/worth"


def measure(broker: RunningBroker) -> Worth:
    """Kill the broker, and start it again. Raises LoadTestError."""
    if not broker.kind.speaks_mqtt:
        return _of_streams(broker)
    subscriber = _Client(broker.address, "worth-subscriber", is_clean=False)
    subscriber.do(lambda client: client.subscribe(TOPIC, 1))
    subscriber.close()
    publisher = _Client(broker.address, "worth-publisher", is_clean=True)
    acknowledged = publisher.publish_until(MESSAGES, broker.kill)
    publisher.close()
    broker.start()
    subscriber = _Client(broker.address, "worth-subscriber", is_clean=False)
    came = subscriber.what_comes()
    subscriber.close()
    return Worth(len(acknowledged), len(acknowledged & came))


def _of_streams(server: RunningBroker) -> Worth:
    acknowledged = 0
    add = streams.command(b"XADD", streams.STREAM, b"*", b"p", b"." * 100)
    with socket.create_connection(server.address[:2], PATIENCE_S) as connection:
        while acknowledged < MESSAGES:
            connection.sendall(add * IN_FLIGHT)
            lines = 0
            while lines < 2 * IN_FLIGHT:  # $SIZE, and the entry's id
                lines += connection.recv(1 << 16).count(b"\n")
            acknowledged += IN_FLIGHT
        server.kill()
    server.start()
    said = streams.ask(server.address, b"XLEN", streams.STREAM)
    return Worth(acknowledged, min(acknowledged, int(said[1:])))


class _Client:
    """A paho client with a thread of its own."""

    def __init__(self, address: BrokerAddress, client_id: str, is_clean: bool) -> None:
        self._changed = threading.Condition()
        self._connected = False
        self._answered: set[int] = set()
        self._came: set[int] = set()
        self._client = client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, clean_session=is_clean, protocol=paho.MQTTv311
        )
        client.max_inflight_messages_set(IN_FLIGHT)
        client.on_connect = self._on_connect
        client.on_subscribe = client.on_publish = self._on_answer
        client.on_message = self._on_message
        client.connect(address.host, address.port)
        client.loop_start()
        self._until(lambda: self._connected, "a CONNACK")

    def _on_connect(self, *_: Any) -> None:
        with self._changed:
            self._connected = True
            self._changed.notify_all()

    def _on_answer(self, _client: Any, _userdata: Any, packet_id: int, *_: Any) -> None:
        with self._changed:
            self._answered.add(packet_id)
            self._changed.notify_all()

    def _on_message(self, _client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self._came.add(int(message.payload))
            self._changed.notify_all()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, PATIENCE_S):
                raise LoadTestError(f"{what} did not come within {PATIENCE_S:.0f} s")

    def do(self, action: Callable[[paho.Client], tuple[Any, int | None]]) -> None:
        _, packet_id = action(self._client)
        self._until(lambda: packet_id in self._answered, "the answer")

    def publish_until(self, messages: int, kill: Callable[[], None]) -> set[int]:
        """Publish twice as many messages, and kill the broker once `messages` are acknowledged. Returns those."""
        numbers = {self._client.publish(TOPIC, str(i), 1).mid: i for i in range(2 * messages)}
        self._until(lambda: len(self._answered) >= messages, "the acknowledgements")
        with self._changed:
            acknowledged = {numbers[packet_id] for packet_id in self._answered}
        kill()
        return acknowledged

    def what_comes(self) -> set[int]:
        """All messages, until none came for QUIET_S."""
        with self._changed:
            known = -1
            while len(self._came) != known:
                known = len(self._came)
                self._changed.wait(QUIET_S)
            return set(self._came)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
