"""Debian's mosquitto as a bridge to us, as users set one up: `connection`, `address`, `topic`, all else by default.

With MQTT 5 the bridge must also ask for a session that outlives its connection. Mosquitto 2.1 does so by
`bridge_session_expiry_interval`. Earlier versions cannot, so a relay adds the Session Expiry Interval to their CONNECT.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.packets import Connect, Publish
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.wire import Wire
from tests.conftest import ServerFactory, StartMosquitto
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

KILLS = 2
PER_ROUND = 60
TIMEOUT_S = 150  # a bridge that lost its connection tries again after 5 to 30 s
BRIDGE = """
connection home
address 127.0.0.1:{}
topic # both 1
"""
SESSION_EXPIRY_S = 3_600


class SessionExpiryWire(Wire):
    """A relay in front of a server that adds a Session Expiry Interval to each CONNECT of MQTT 5."""

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readexactly(2)
            while head[-1] & 0x80:
                head += await reader.readexactly(1)
            size, _ = decode_varint(head, 1)
            connect = decode(head[0], await reader.readexactly(size), 5)
            assert isinstance(connect, Connect)
            connect.properties.session_expiry_interval = SESSION_EXPIRY_S
            writer.write(encode(connect, 5))
        await super()._copy(reader, writer)

    async def _copy_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._copy(reader, writer)


class Site:
    """A client of one of the brokers that sees all that is published there, and publishes. It comes back by itself."""

    def __init__(self, port: int, name: str) -> None:
        self.seen: Counter[str] = Counter()
        self._sent = self._acknowledged = 0
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = lambda client, *_: client.subscribe("#", 1)
        self._client.on_message = self._on_message
        self._client.on_publish = self._on_publish
        self._client.on_subscribe = lambda *_: self._subscribed.append(True)
        self._subscribed: list[bool] = []
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3_600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.loop_start()
        wait_until(lambda: bool(self._subscribed), TIMEOUT_S)

    def _on_message(self, _: paho.Client, __: object, message: paho.MQTTMessage) -> None:
        self.seen[message.payload.decode()] += 1

    def publish(self, *payloads: str, is_waited_for: bool = True, retain: bool = False) -> None:
        for payload in payloads:
            self._client.publish(f"site/{payload}", payload, 1, retain)
        self._sent += len(payloads)
        if is_waited_for:
            wait_until(lambda: self._acknowledged == self._sent, TIMEOUT_S)

    def _on_publish(self, *_: object) -> None:
        self._acknowledged += 1

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def everything_stored(port: int) -> Counter[str]:
    """How often each payload is in our log: a client may be sent again what it had acknowledged when we were killed."""
    device = Device(port, "reader")
    device.connect()
    assert device.subscribe("#", history="earliest") is ReasonCode.GRANTED_QOS_0
    found: Counter[str] = Counter()
    while not found["end"]:
        if not found:
            device.publish("end", b"end")
        found[device.next(Publish).payload.decode()] += 1
    return found


Start = Callable[[int, str], Site]


@pytest.fixture
def start_site() -> Iterator[Start]:
    sites: list[Site] = []

    def start(port: int, name: str) -> Site:
        sites.append(Site(port, name))
        return sites[-1]

    yield start
    for site in sites:
        site.close()


def test_a_bridge_both_ways_through_kills(
    penstock_server: ServerFactory, start_mosquitto: StartMosquitto, start_site: Start
) -> None:
    server = penstock_server(flush="async")
    nothing_is_lost(server, start_mosquitto(BRIDGE.format(server.port)), start_site)


@pytest.mark.nightly
def test_a_bridge_of_mqtt_5_with_a_session_expiry_interval(
    penstock_server: ServerFactory, start_mosquitto: StartMosquitto, start_site: Start
) -> None:
    server = penstock_server(flush="async")
    with closing(SessionExpiryWire(server.port)) as wire:
        port = start_mosquitto(BRIDGE.format(wire.port) + "bridge_protocol_version mqttv50\n")
        nothing_is_lost(server, port, start_site)


def nothing_is_lost(server: PenstockServer, port: int, start_site: Start) -> None:
    """Nothing that either side acknowledged is lost by kills, and nothing comes back to where it was published."""
    theirs, ours = start_site(port, "theirs"), start_site(server.port, "ours")
    expected: set[str] = set()

    def publish(kind: str, is_waited_for: bool = True) -> None:
        for name, site in (("theirs", theirs), ("ours", ours)):
            payloads = [f"{name}-{kind}-{number}" for number in range(PER_ROUND)]
            expected.update(payloads)
            site.publish(*payloads, is_waited_for=is_waited_for or name == "ours")

    def all_there() -> bool:
        return set(theirs.seen) >= expected and set(ours.seen) >= expected

    expected.add("hello")
    ours.publish("hello", retain=True)  # the bridge may subscribe later
    wait_until(all_there, TIMEOUT_S)  # the bridge is there
    for number in range(KILLS):
        publish(f"before-{number}", is_waited_for=False)
        server.kill()
        away = [f"theirs-away-{number}-{each}" for each in range(PER_ROUND)]
        expected.update(away)
        theirs.publish(*away)
        server.restart()
        publish(f"after-{number}")
        wait_until(all_there, TIMEOUT_S)
    publish("last")
    wait_until(all_there, TIMEOUT_S)
    assert {theirs.seen[payload] for payload in expected if payload.startswith("theirs")} == {1}
    stored = everything_stored(server.port)
    assert {stored[payload] for payload in expected if payload.startswith("ours")} == {1}
    assert "Traceback" not in server.log_text()
