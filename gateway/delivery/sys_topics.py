"""The server's figures in $SYS/broker/..., under the names that Mosquitto's users know.

A new subscriber gets every value at once, with RETAIN=1. From then on its gateway sends the values that changed every
sys_interval_s, at QoS 0. They are not stored and cannot be replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gateway.delivery.deliverer import Deliverer
from gateway.delivery.shared_subscriptions import SharedSubscriptions
from gateway.mqtt._mqtt import Reader, Turn
from gateway.mqtt._tenants import Tenant
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Publish
from gateway.mqtt.properties import Properties
from gateway.sessions.connection_table import ConnectionTable
from gateway.sessions.session import Session
from notify.api import Store, StoreStatus
from store.namespaces import is_servers
from store.state.changes import SubscriptionState
from store.topics import matches
from store.version import VERSION

PREFIX = "$SYS/broker/"
AVERAGED_MIN = (1, 5, 15)


@dataclass(frozen=True, slots=True)
class Status:
    """The sources of the topics' values."""

    turn: Turn
    store: Store
    deliverer: Deliverer
    shared: SharedSubscriptions
    connections: ConnectionTable
    started_s: float
    """When the gateway started, by the loop's clock."""

    @property
    def subscription_count(self) -> int:
        """Subscriptions of all sessions where the store is in this process, otherwise of the connected ones."""
        status = self.store.status
        durable = status.subscriptions if status is not None else self.deliverer.durable + self.shared.durable
        return self.deliverer.transient + self.shared.transient + durable

    @property
    def uptime_s(self) -> float:
        return float(self.turn.now_s - self.started_s)


@dataclass(frozen=True, slots=True)
class SysTopic:
    """One value: the end of its topic, its description, and the function that reads it."""

    name: str
    doc: str
    read: Callable[[Status], object]


def _of_turn(name: str) -> Callable[[Status], int]:
    """A number that the compiled leaf counts, of all QoS together."""

    def read(status: Status) -> int:
        value = status.turn.counters()[name]
        return sum(value) if isinstance(value, list) else int(value)

    return read


def _dropped(status: Status) -> int:
    counts = status.turn.counters()
    return int(
        status.deliverer.dropped + counts["expired"] + counts["too_large"] + counts["unreadable"] + counts["lost"]
    )


def _of_store(read: Callable[[StoreStatus], int]) -> Callable[[Status], int | None]:
    """A number of the store; None if this process does not know it."""
    return lambda status: read(status.store.status) if status.store.status is not None else None


_stored_messages = _of_store(lambda store: store.stored_messages)
_offline = _of_store(lambda store: store.absent_sessions)


SYS_TOPICS = (
    SysTopic("version", "Name and version of the server.", lambda status: f"penstock version {VERSION}"),
    SysTopic(
        "uptime", "Seconds since the start, and the word `seconds`.", lambda status: f"{status.uptime_s:.0f} seconds"
    ),
    SysTopic("clients/connected", "Clients connected now.", lambda status: status.connections.online),
    SysTopic("clients/disconnected", "Sessions whose client is not connected.", _offline),
    SysTopic(
        "clients/total",
        "Sessions, with and without a client.",
        lambda status: status.connections.online + (_offline(status) or 0),
    ),
    SysTopic(
        "clients/maximum", "Most clients that were connected at a time.", lambda status: status.connections.most_online
    ),
    SysTopic("clients/expired", "Sessions that expired.", _of_store(lambda store: store.expired_sessions)),
    SysTopic("subscriptions/count", "Subscriptions of all sessions.", lambda status: status.subscription_count),
    SysTopic("retained messages/count", "Topics with a retained message.", _of_store(lambda store: store.retained)),
    SysTopic("messages/received", "MQTT packets of every kind received.", _of_turn("packets_in")),
    SysTopic("messages/sent", "MQTT packets of every kind sent.", _of_turn("packets_out")),
    SysTopic("messages/inflight", "QoS 1 and 2 messages not acknowledged by connected clients.", _of_turn("inflight")),
    SysTopic("messages/stored", "The same as `store/messages/count`.", _stored_messages),
    SysTopic("publish/messages/received", "PUBLISH packets taken in.", _of_turn("received")),
    SysTopic("publish/messages/sent", "PUBLISH packets sent.", _of_turn("sent")),
    SysTopic(
        "publish/messages/dropped",
        "Messages that a subscriber did not get: behind, expired, too large, unreadable, lost.",
        _dropped,
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
        "store/messages/bytes",
        "Bytes that the log holds.",
        _of_store(lambda store: store.log_bytes),
    ),
)

LOADS: dict[str, Callable[[Status], int]] = {
    "messages/received": _of_turn("packets_in"),
    "messages/sent": _of_turn("packets_out"),
    "publish/received": _of_turn("received"),
    "publish/sent": _of_turn("sent"),
    "publish/dropped": _dropped,
    "bytes/received": _of_turn("bytes_in"),
    "bytes/sent": _of_turn("sent_bytes"),
    "sockets": lambda status: status.connections.sockets_total,
    "connections": lambda status: status.connections.opened_total,
}
"""`load/NAME/1min`, `5min` and `15min`: growth of each of these counts in a minute, averaged over that time."""


class LoadAverage:
    """Moving averages of one count's growth, weighted as in Mosquitto."""

    def __init__(self) -> None:
        self.per_minute = dict.fromkeys(AVERAGED_MIN, 0.0)
        self._last = 0

    def count(self, total: int, interval_s: float) -> None:
        """Update the averages: the count is `total` now, `interval_s` after the last call."""
        rate = (total - self._last) * 60 / interval_s
        self._last = total
        for minutes, average in self.per_minute.items():
            self.per_minute[minutes] = rate + math.exp(-interval_s / (60 * minutes)) * (average - rate)


def _values_of(tenant: Tenant, status: Status) -> dict[str, bytes]:
    """The values for clients of a namespace: version and uptime, and the counts of that namespace alone."""
    read: dict[str, object] = {
        "version": f"penstock version {VERSION}",
        "uptime": f"{status.uptime_s:.0f} seconds",
        "clients/connected": tenant.connections,
        "publish/messages/received": tenant.received,
        "publish/messages/sent": tenant.sent,
        "publish/bytes/received": tenant.received_bytes,
        "publish/bytes/sent": tenant.sent_bytes,
    }
    return {tenant.names.topic(PREFIX + name): str(value).encode() for name, value in read.items()}


class SysTopics:
    """Owner of the averages, and of the values that were published last."""

    def __init__(self, status: Status, interval_s: float) -> None:
        """`interval_s`: time between two publications; 0: nothing is published."""
        self._status = status
        self._interval_s = interval_s
        self._loads = {name: LoadAverage() for name in LOADS}
        self._counted_at_s = status.turn.now_s
        self._published: dict[Tenant | None, dict[str, bytes]] = {}  # to the clients of each namespace

    def tick(self) -> None:
        """Call once a second: publish the values that changed, every `interval_s`."""
        interval_s = self._status.turn.now_s - self._counted_at_s
        if not self._interval_s or interval_s < self._interval_s:
            return
        self._counted_at_s = self._status.turn.now_s
        for name, read in LOADS.items():
            self._loads[name].count(read(self._status), interval_s)
        self._publish()

    def _publish(self) -> None:
        """Send the values to subscribers at this gateway. They are not stored."""
        readers = self._status.deliverer.of_server
        if not readers:
            self._published.clear()
            return
        sessions = {reader.session: None for reader in readers if reader.link is not None}
        values = {tenant: self.values(tenant) for tenant in {session.connection.tenant for session in sessions}}
        changed = {
            tenant: {
                topic: value for topic, value in said.items() if self._published.get(tenant, {}).get(topic) != value
            }
            for tenant, said in values.items()
        }
        self._published = values
        for session in sessions:
            wanted = [reader for reader in session.readers.values() if reader in readers]
            self._send(session, wanted, changed[session.connection.tenant], False)

    def values(self, tenant: Tenant | None = None) -> dict[str, bytes]:
        """The value of each topic now: of the whole server, or of one namespace."""
        if tenant is not None:
            return _values_of(tenant, self._status)
        read = {topic.name: topic.read(self._status) for topic in SYS_TOPICS}
        values = {PREFIX + name: str(value).encode() for name, value in read.items() if value is not None}
        for name, load in self._loads.items():
            for minutes, average in load.per_minute.items():
                values[f"{PREFIX}load/{name}/{minutes}min"] = b"%.2f" % average
        return values

    def send_to(self, session: Session, subscription: SubscriptionState) -> None:
        """Send the values that match a new subscription, as retained messages."""
        if self._interval_s and session.link is not None and is_servers(subscription.topic_filter):
            values = self.values(session.link.tenant)
            self._send(session, session.readers_of(subscription.topic_filter)[:1], values, True)

    def _send(self, session: Session, readers: list[Reader], values: dict[str, bytes], retain: bool) -> None:
        link = session.link
        if link is None or link.paused:
            return
        for topic, value in values.items():
            matching = [reader for reader in readers if matches(reader.topic_filter, topic)]
            if not matching:
                continue
            ids = tuple(reader.subscription_id for reader in matching if reader.subscription_id)
            properties = Properties(subscription_identifiers=ids)
            plain_topic = link.names.plain_topic(topic)
            packet = encode(Publish(plain_topic, value, retain=retain, properties=properties), link.version)
            if len(packet) <= link.max_packet_out:
                link.write(packet)
                self._status.turn.count_sent(0, len(value))
                if link.tenant is not None:
                    link.tenant.count_sent(len(value))
