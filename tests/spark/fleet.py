"""Messages that a stock MQTT client (paho) published to a server, and what another one was given of them."""

import threading
from dataclasses import dataclass, field

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from store.topics import matches
from tests.support.server_process import PenstockServer

TIMEOUT_S = 30
FILTERS = ("#", "line/#", "line", "line/+", "+/7/temp", "line/+/temp", "+/+", "/#", "+", "x/y")


@dataclass(frozen=True)
class Sent:
    """A message as it was published."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    user_properties: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None


def connected(port: int, client_id: str) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_queued_messages_set(0)
    client.max_inflight_messages_set(1000)
    client.connect("127.0.0.1", port)
    client.loop_start()
    return client


def leave(client: paho.Client) -> None:
    client.disconnect()
    client.loop_stop()


def publish(port: int, messages: list[Sent], client_id: str = "another") -> None:
    """Publish in this order; all are acknowledged when it returns."""
    client = connected(port, client_id)
    sent = [client.publish(m.topic, m.payload, m.qos, m.retain, _properties(m)) for m in messages]
    for info in sent:
        info.wait_for_publish(TIMEOUT_S)
        assert info.is_published()
    leave(client)


def _properties(message: Sent) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)
    if message.user_properties:
        properties.UserProperty = list(message.user_properties)
    if message.content_type is not None:
        properties.ContentType = message.content_type
    if message.response_topic is not None:
        properties.ResponseTopic = message.response_topic
    if message.correlation_data is not None:
        properties.CorrelationData = message.correlation_data
    return properties


def telemetry(count: int, round_: str = "") -> list[Sent]:
    """So many messages of all kinds, each with a payload of its own."""
    topics = ["line/7/temp", "line/8/temp", "line/8/state", "line", "plant/7/temp", "/7", "x", "line/9/temp", "line/7"]
    return [
        Sent(topics[i % len(topics)], f"{round_}{i}".encode().rjust(150), qos=i % 3, retain=i % 50 == 0)
        for i in range(count)
    ]


HEADERS = [
    Sent(
        "headers/1",
        b"all",
        user_properties=(("unit", "°C"), ("site", ""), ("unit", "K"), ("", "no key")),
        content_type="text/plain; charset=utf-8",
        response_topic="answers/1",
        correlation_data=bytes(range(256)),
    ),
    Sent("headers/2", b"", user_properties=(("a", "b" * 1000),)),
    Sent("headers/3", b"none"),
    Sent("headers/4", b"empty", content_type="", correlation_data=b""),
]


@dataclass
class Fleet:
    """A running server and what was published to it. `delivered`: by filter, what the broker gave a subscriber."""

    server: PenstockServer
    published: list[Sent] = field(default_factory=lambda: telemetry(1200) + HEADERS)
    delivered: dict[str, list[tuple[str, bytes]]] = field(default_factory=lambda: {name: [] for name in FILTERS})

    def __post_init__(self) -> None:
        expected = sum(matches(name, message.topic) for name in FILTERS for message in self.published)
        complete, subscribed = threading.Event(), threading.Event()
        missing = [expected]

        def on_message(_client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
            assert message.properties is not None
            for identifier in vars(message.properties)["SubscriptionIdentifier"]:
                self.delivered[FILTERS[identifier - 1]].append((message.topic, bytes(message.payload)))
                missing[0] -= 1
            if missing[0] <= 0:
                complete.set()

        subscriber = connected(self.server.port, "everything")
        subscriber.on_message = on_message
        subscriber.on_subscribe = lambda *_: subscribed.set()
        for identifier, name in enumerate(FILTERS, 1):
            properties = Properties(PacketTypes.SUBSCRIBE)
            properties.SubscriptionIdentifier = identifier
            subscribed.clear()
            subscriber.subscribe(name, options=SubscribeOptions(qos=2), properties=properties)
            assert subscribed.wait(TIMEOUT_S)
        publish(self.server.port, self.published, "fleet")
        assert complete.wait(TIMEOUT_S), f"{missing[0]} deliveries are missing"
        leave(subscriber)

    @property
    def path(self) -> str:
        return str(self.server.data)
