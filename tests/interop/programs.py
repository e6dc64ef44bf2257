"""Programs by other people, and our own two, with one way to start each: as a subscriber or as a publisher.

A subscriber is ready once it is constructed: either it said so, or it printed the retained message on READY, which
`mark_ready` puts on a server.
"""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import paho.mqtt.client as paho
from amqtt.client import MQTTClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.server_process import ROOT
from tests.support.stores import wait_until

TIMEOUT_S = 30
READY = "ready/now"
Message = tuple[str, bytes]
T = TypeVar("T")

logging.getLogger("amqtt").setLevel(logging.ERROR)


def run(*command: str, stdin: bytes = b"", code: int = 0) -> bytes:
    """What a program prints."""
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)
    assert done.returncode == code, (command, done)
    return done.stdout


def penstock(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", *arguments]


def mark_ready(port: int) -> None:
    run("mosquitto_pub", "-p", str(port), "-t", READY, "-m", "x", "-r", "-q", "1")


class Subscriber(Protocol):
    """Subscribed once constructed."""

    def messages(self, count: int) -> list[Message]:
        """The first `count` messages, waited for; then it leaves."""


class LineSubscriber:
    """A program that prints `topic payload` for each message."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._watchdog = threading.Timer(TIMEOUT_S, self.process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        line = self._line()
        assert line.startswith(READY.encode() + b" "), (line, self._errors())

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def _errors(self) -> bytes:
        self.process.kill()
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def messages(self, count: int) -> list[Message]:
        found: list[Message] = []
        for _ in range(count):
            line = self._line()
            assert line, (found, self._errors())
            topic, _, payload = line.removesuffix(b"\n").partition(b" ")
            found.append((topic.decode(), payload))
        self.kill()
        return found

    def kill(self) -> None:
        """Without a goodbye."""
        self._watchdog.cancel()
        self.process.kill()
        self.process.communicate()


def mosquitto_sub(port: int, topic_filter: str, qos: int, *extra: str, version: int = 4) -> LineSubscriber:
    name = {4: "mqttv311", 5: "mqttv5"}[version]
    command = ["mosquitto_sub", "-p", str(port), "-V", name, "-q", str(qos), "-t", READY, "-t", topic_filter]
    return LineSubscriber([*command, "-F", "%t %p", *extra])


def penstock_sub(port: int, topic_filter: str, qos: int) -> LineSubscriber:
    url = f"mqtt://127.0.0.1:{port}"
    return LineSubscriber(penstock("sub", READY, topic_filter, "-v", "-q", str(qos), "--url", url))


class PahoClient:
    """paho on a thread of its own."""

    def __init__(self, port: int, version: int = 5, client_id: str = "", expiry_s: int = 0, clean: bool = True) -> None:
        protocol = MQTTProtocolVersion.MQTTv5 if version == 5 else MQTTProtocolVersion.MQTTv311
        session = {} if version == 5 else {"clean_session": clean}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=protocol, **session)  # type: ignore[arg-type]
        self.version = version
        self._changed = threading.Condition()
        self._messages: list[paho.MQTTMessage] = []
        self._subscribed = 0
        self._unsubscribed = False
        self.session_present: bool | None = None
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe
        self.client.on_unsubscribe = self._on_unsubscribe
        self.client.on_connect = self._on_connect
        self._port, self._expiry_s, self._clean = port, expiry_s, clean

    def connect(self) -> "PahoClient":
        options: dict[str, object] = {}
        if self.version == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = self._expiry_s
            options = {"clean_start": self._clean, "properties": properties}
        self.client.connect("127.0.0.1", self._port, **options)  # type: ignore[arg-type]
        self.client.loop_start()
        self._wait(lambda: self.session_present is not None)
        return self

    def subscribe(self, topic_filter: str, qos: int) -> "PahoClient":
        self._subscribed = 0
        self.client.subscribe(topic_filter, qos)
        self._wait(lambda: self._subscribed > 0)
        return self

    def publish(self, topic: str, payloads: Sequence[bytes], qos: int, retain: bool = False) -> None:
        """Returns once all are acknowledged (QoS 0: written)."""
        for info in [self.client.publish(topic, payload, qos, retain) for payload in payloads]:
            info.wait_for_publish(TIMEOUT_S)
            assert info.is_published()

    def raw_messages(self, count: int) -> list[paho.MQTTMessage]:
        self._wait(lambda: len(self._messages) >= count)
        return self._messages

    def distinct(self, count: int) -> list[bytes]:
        """Waits for that many different payloads; at QoS 1 one may come twice."""
        self._wait(lambda: len({message.payload for message in self._messages}) >= count)
        return list(dict.fromkeys(bytes(message.payload) for message in self._messages))

    def messages(self, count: int) -> list[Message]:
        found = [(message.topic, bytes(message.payload)) for message in self.raw_messages(count)]
        self.leave()
        return found

    def acknowledge(self) -> None:
        """Waits until what came is acknowledged. paho leaves without the acknowledgements that it has not written."""
        self._unsubscribed = False
        self.client.unsubscribe("nothing")
        self._wait(lambda: self._unsubscribed)
        wait_until(lambda: not self.client.want_write())

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def kill(self) -> None:
        """Cut the connection without a goodbye."""
        self.client._sock_close()
        self.client.loop_stop()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT_S), [message.payload for message in self._messages]

    def _on_message(self, client: object, userdata: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def _on_subscribe(self, *_: object) -> None:
        with self._changed:
            self._subscribed += 1
            self._changed.notify_all()

    def _on_unsubscribe(self, *_: object) -> None:
        with self._changed:
            self._unsubscribed = True
            self._changed.notify_all()

    def _on_connect(self, client: object, userdata: object, flags: paho.ConnectFlags, *_: object) -> None:
        with self._changed:
            self.session_present = flags.session_present
            self._changed.notify_all()


class AmqttSubscriber:
    """amqtt's client (MQTT 3.1.1) on a loop in a thread."""

    def __init__(self, port: int, topic_filter: str, qos: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = self._do(self._connect(port, topic_filter, qos))

    @staticmethod
    async def _connect(port: int, topic_filter: str, qos: int) -> MQTTClient:
        client = MQTTClient(config={"auto_reconnect": False})
        await client.connect(f"mqtt://127.0.0.1:{port}/")
        assert await client.subscribe([(topic_filter, qos)]) == [qos]
        return client

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    def messages(self, count: int) -> list[Message]:
        found = self._do(self._receive(count))
        self._do(self._client.disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()
        return list(found)

    async def _receive(self, count: int) -> list[Message]:
        found = []
        for _ in range(count):
            message = await self._client.deliver_message(timeout_duration=TIMEOUT_S)
            assert message is not None
            found.append((message.topic, bytes(message.data or b"")))
        return found


def amqtt_publish(port: int, topic: str, payloads: Sequence[bytes], qos: int, retain: bool = False) -> None:
    async def publish() -> None:
        client = MQTTClient(config={"auto_reconnect": False})
        await client.connect(f"mqtt://127.0.0.1:{port}/")
        for payload in payloads:
            await client.publish(topic, payload, qos, retain)
        await client.disconnect()

    asyncio.run(publish())


def paho_publish(version: int) -> Callable[..., None]:
    def publish(port: int, topic: str, payloads: Sequence[bytes], qos: int, retain: bool = False) -> None:
        client = PahoClient(port, version).connect()
        client.publish(topic, payloads, qos, retain)
        client.leave()

    return publish


def mosquitto_publish(version: str) -> Callable[..., None]:
    def publish(port: int, topic: str, payloads: Sequence[bytes], qos: int, retain: bool = False) -> None:
        command = ["mosquitto_pub", "-p", str(port), "-V", version, "-t", topic, "-q", str(qos), "-l"]
        run(*command, *(["-r"] if retain else []), stdin=b"\n".join(payloads) + b"\n")

    return publish


def penstock_publish(port: int, topic: str, payloads: Sequence[bytes], qos: int, retain: bool = False) -> None:
    command = penstock("pub", topic, "-l", "-q", str(qos), "--url", f"mqtt://127.0.0.1:{port}")
    run(*command, *(["-r"] if retain else []), stdin=b"\n".join(payloads) + b"\n")


PUBLISHERS: dict[str, Callable[..., None]] = {
    "mosquitto-3": mosquitto_publish("mqttv311"),
    "mosquitto-5": mosquitto_publish("mqttv5"),
    "paho-3": paho_publish(4),
    "paho-5": paho_publish(5),
    "amqtt": amqtt_publish,
    "penstock": penstock_publish,
}
"""name -> publish(port, topic, payloads, qos, retain=False)"""

SUBSCRIBERS: dict[str, Callable[[int, str, int], Subscriber]] = {
    "mosquitto-3": mosquitto_sub,
    "mosquitto-5": lambda port, topic_filter, qos: mosquitto_sub(port, topic_filter, qos, version=5),
    "paho-3": lambda port, topic_filter, qos: PahoClient(port, 4).connect().subscribe(topic_filter, qos),
    "paho-5": lambda port, topic_filter, qos: PahoClient(port, 5).connect().subscribe(topic_filter, qos),
    "amqtt": AmqttSubscriber,
    "penstock": penstock_sub,
}
"""name -> subscriber of (port, topic_filter, qos)"""
