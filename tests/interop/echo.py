"""A client in Python subscribes to a topic, publishes at each QoS, and prints what it gets.

python tests/interop/echo.py CLIENT URL VERSION CA TOPIC
"""

import asyncio
import ssl
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

TIMEOUT_S = 20


def paho(url: SplitResult, version: int, ca: str, topic: str) -> None:
    from paho.mqtt import client as library
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

    transport: Any = {"ws": "websockets", "wss": "websockets", "unix": "unix"}.get(url.scheme, "tcp")
    client = library.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion(version), transport=transport)
    left = [3]

    def on_message(_: Any, __: Any, message: library.MQTTMessage) -> None:
        show(message.topic, bytes(message.payload), message.qos)
        left[0] -= 1

    client.on_message = on_message

    def on_connect(*_: object) -> None:
        client.subscribe(topic, 2)

    def on_subscribe(*_: object) -> None:
        for qos in range(3):
            client.publish(topic, str(qos), qos)

    client.on_connect, client.on_subscribe = on_connect, on_subscribe
    if url.scheme in ("mqtts", "wss"):
        client.tls_set(ca)
    client.connect(url.path if transport == "unix" else str(url.hostname), url.port or 1)
    while left[0]:
        assert client.loop(TIMEOUT_S) == MQTTErrorCode.MQTT_ERR_SUCCESS
    client.disconnect()


def gmqtt(url: SplitResult, version: int, ca: str, topic: str) -> None:
    import gmqtt as library

    async def run() -> None:
        client = library.Client("")
        subscribed, done = asyncio.Event(), asyncio.Event()
        left = [3]

        def on_message(_: Any, found: str, payload: bytes, qos: int, __: Any) -> int:
            show(found, payload, qos)
            left[0] -= 1
            if not left[0]:
                done.set()
            return 0

        client.on_message = on_message
        client.on_subscribe = lambda *_: subscribed.set()
        tls = ssl.create_default_context(cafile=ca) if url.scheme == "mqtts" else False
        await client.connect(str(url.hostname), url.port, ssl=tls, version=version)
        client.subscribe(topic, qos=2)
        await asyncio.wait_for(subscribed.wait(), TIMEOUT_S)
        for qos in range(3):
            client.publish(topic, str(qos), qos=qos)
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
        with suppress(ssl.SSLError):  # what was under way to it when it said goodbye, asyncio reports as an error
            await client.disconnect()

    asyncio.run(run())


def amqtt(url: SplitResult, version: int, ca: str, topic: str) -> None:
    from amqtt.client import MQTTClient

    async def run() -> None:
        client = MQTTClient(config={"auto_reconnect": False, "check_hostname": True})
        await client.connect(url.geturl(), cafile=ca)
        await client.subscribe([(topic, 2)])
        for qos in range(3):
            await client.publish(topic, str(qos).encode(), qos)
        for _ in range(3):
            message = await client.deliver_message(timeout_duration=TIMEOUT_S)
            assert message is not None
            show(message.topic, bytes(message.data or b""), message.qos)
        await client.disconnect()

    assert version == 4
    asyncio.run(run())


def show(topic: str, payload: bytes, qos: int | None) -> None:
    print(topic, payload.decode(), qos, flush=True)


if __name__ == "__main__":
    clients = {"paho": paho, "gmqtt": gmqtt, "amqtt": amqtt}
    clients[sys.argv[1]](urlsplit(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
