"""What the server says of itself in $SYS/broker/..., under the names that Mosquitto's users know.

A new subscriber gets every value at once, with RETAIN=1. From then on those that changed are published every
sys_interval_s, live-only: they are in no stored queue and cannot be replayed. Nothing is published that nobody follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.codec import encode
from gateway.packets import Publish
from gateway.properties import Properties
from gateway.session import Session
from gateway.version import VERSION
from lightqueue.matching import matches
from store.changes import SubscriptionState

if TYPE_CHECKING:
    from gateway.broker import Broker

PREFIX = "$SYS/broker/"
AVERAGED_MIN = (1, 5, 15)


@dataclass(frozen=True, slots=True)
class SysTopic:
    """One value: the end of its topic, what it says, and where it is read."""

    name: str
    doc: str
    read: Callable[[Broker], object]


def _of_turn(name: str) -> Callable[[Broker], int]:
    """A number that the compiled leaf counts, of all QoS together."""

    def read(broker: Broker) -> int:
        value = broker.turn.counters()[name]
        return sum(value) if isinstance(value, list) else int(value)

    return read


def _dropped(broker: Broker) -> int:
    counts = broker.turn.counters()
    return int(broker.delivery.dropped + counts["expired"] + counts["too_large"])


def _stored_messages(broker: Broker) -> int:
    return broker.store.queues.dispatcher.messages


SYS_TOPICS = (
    SysTopic("version", "Name and version of the server.", lambda broker: f"penstock version {VERSION}"),
    SysTopic(
        "uptime", "Seconds since the start, and the word `seconds`.", lambda broker: f"{broker.uptime_s:.0f} seconds"
    ),
    SysTopic("clients/connected", "Clients connected now.", lambda broker: broker.online),
    SysTopic("clients/disconnected", "Sessions whose client is not connected.", lambda broker: broker.offline),
    SysTopic("clients/total", "Sessions, with and without a client.", lambda broker: len(broker.registry.sessions)),
    SysTopic("clients/maximum", "Most clients that were connected at a time.", lambda broker: broker.most_online),
    SysTopic("clients/expired", "Sessions that expired.", lambda broker: broker.registry.expired),
    SysTopic("subscriptions/count", "Subscriptions of all sessions.", lambda broker: broker.subscription_count),
    SysTopic("retained messages/count", "Topics with a retained message.", lambda broker: len(broker.store.retained)),
    SysTopic("messages/received", "MQTT packets of every kind received.", _of_turn("packets_in")),
    SysTopic("messages/sent", "MQTT packets of every kind sent.", _of_turn("packets_out")),
    SysTopic("messages/inflight", "QoS 1 and 2 messages not acknowledged by connected clients.", _of_turn("inflight")),
    SysTopic("messages/stored", "The same as `store/messages/count`.", _stored_messages),
    SysTopic("publish/messages/received", "PUBLISH packets taken in.", _of_turn("received")),
    SysTopic("publish/messages/sent", "PUBLISH packets sent.", _of_turn("sent")),
    SysTopic(
        "publish/messages/dropped", "Messages that a subscriber did not get: behind, expired, too large.", _dropped
    ),
    SysTopic("publish/bytes/received", "Bytes of the payloads of those received.", _of_turn("received_bytes")),
    SysTopic("publish/bytes/sent", "Bytes of the payloads of those sent.", _of_turn("sent_payload_bytes")),
    SysTopic("bytes/received", "Bytes received from clients.", _of_turn("bytes_in")),
    SysTopic("bytes/sent", "Bytes sent to clients.", _of_turn("sent_bytes")),
    SysTopic(
        "store/messages/count",
        "Messages written to the log since the start, those replayed at the start included; not those held: "
        "every message is, until retention takes it.",
        _stored_messages,
    ),
    SysTopic(
        "store/messages/bytes", "Bytes that the log holds.", lambda broker: broker.store.end - broker.store.log.first
    ),
)

LOADS: dict[str, Callable[[Broker], int]] = {
    "messages/received": _of_turn("packets_in"),
    "messages/sent": _of_turn("packets_out"),
    "publish/received": _of_turn("received"),
    "publish/sent": _of_turn("sent"),
    "publish/dropped": _dropped,
    "bytes/received": _of_turn("bytes_in"),
    "bytes/sent": _of_turn("sent_bytes"),
    "sockets": lambda broker: broker.sockets_total,
    "connections": lambda broker: broker.opened_total,
}
"""`load/NAME/1min`, `5min` and `15min`: by how much each of these grows in a minute, averaged over that time."""


class Load:
    """Moving averages of how fast one count grows, weighted as Mosquitto's are."""

    def __init__(self) -> None:
        self.per_minute = dict.fromkeys(AVERAGED_MIN, 0.0)
        self._last = 0

    def count(self, total: int, interval_s: float) -> None:
        """The count is `total` now, `interval_s` after the last time."""
        rate = (total - self._last) * 60 / interval_s
        self._last = total
        for minutes, average in self.per_minute.items():
            self.per_minute[minutes] = rate + math.exp(-interval_s / (60 * minutes)) * (average - rate)


class SysTopics:
    """Owner of the averages, and of what was published last."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._interval_s = broker.settings.sys_interval_s
        self._loads = {name: Load() for name in LOADS}
        self._counted_at_s = broker.turn.now_s
        self._published: dict[str, bytes] = {}

    def tick(self) -> None:
        """Publish what changed, if it is time to. To be called once a second."""
        interval_s = self._broker.turn.now_s - self._counted_at_s
        if not self._interval_s or interval_s < self._interval_s:
            return
        self._counted_at_s = self._broker.turn.now_s
        for name, read in LOADS.items():
            self._loads[name].count(read(self._broker), interval_s)
        self._publish()

    def _publish(self) -> None:
        is_watched = self._broker.store.queues.is_watched_live
        values = {topic: value for topic, value in self.values().items() if is_watched(topic.encode())}
        for topic, value in values.items():
            if self._published.get(topic) != value:
                self._broker.publish(topic, value, live_only=True)
        self._published = values

    def values(self) -> dict[str, bytes]:
        """What each topic says now."""
        values = {PREFIX + topic.name: str(topic.read(self._broker)).encode() for topic in SYS_TOPICS}
        for name, load in self._loads.items():
            for minutes, average in load.per_minute.items():
                values[f"{PREFIX}load/{name}/{minutes}min"] = b"%.2f" % average
        return values

    def send_to(self, session: Session, subscription: SubscriptionState) -> None:
        """All values that a new subscription matches, as if they were retained."""
        link = session.link
        if link is None or not self._interval_s or not subscription.topic_filter.startswith("$"):
            return
        ids = (subscription.subscription_id,) if subscription.subscription_id else ()
        for topic, value in self.values().items():
            if matches(subscription.topic_filter, topic):
                properties = Properties(subscription_identifiers=ids)
                packet = encode(Publish(topic, value, retain=True, properties=properties), link.version)
                if len(packet) <= link.max_packet_out:
                    link.write(packet)
                    self._broker.turn.count_sent(0, len(value))
