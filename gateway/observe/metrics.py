"""The metrics of a gateway. The counters are plain integers, which are read when a reader asks.

/metrics and the tables in docs/operations.md come from these lists. Every value is a count that its owner keeps, so
that reading them all costs the same for ten sessions and for a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.broker import Broker
from gateway.mqtt._mqtt import DELIVERY_BOUNDS_MS
from gateway.mqtt.reason_codes import ReasonCode
from gateway.observe.access_metrics import ACCESS
from lightqueue.store_metrics import STORE, group_steps
from notify.local.hub import Hub
from notify.local.log_readers import LOG_READERS
from notify.remote.link_metrics import LINK
from notify.remote.store import RemoteStore
from store.audit_metrics import AUDIT
from store.figures import Figure, Reading, Sections, Times, Value, readings

DELIVERY_BOUNDS_S = tuple(bound / 1000 for bound in DELIVERY_BOUNDS_MS)


def _of_turn(name: str) -> Callable[[Broker], Value]:
    """A number that the compiled leaf counts; by QoS where it counts that."""

    def read(broker: Broker) -> Value:
        value = broker.turn.counters()[name]
        return {str(qos): number for qos, number in enumerate(value)} if isinstance(value, list) else value

    return read


_DROPPED = ("expired", "too_large", "unreadable", "lost")


def _dropped(broker: Broker) -> Value:
    counts = broker.turn.counters()
    return {"behind": broker.deliverer.dropped} | {why: counts[why] for why in _DROPPED}


def _refused(broker: Broker) -> Value:
    of_rules = broker.connections.rules.refused
    return {
        "not_stored": broker.journal.refused_messages,
        "not_authorized": of_rules[ReasonCode.NOT_AUTHORIZED],
        "quota": of_rules[ReasonCode.QUOTA_EXCEEDED],
        "payload_format": of_rules[ReasonCode.PAYLOAD_FORMAT_INVALID],
    }


def _sessions(broker: Broker) -> Value:
    status = broker.store.status
    return {"online": broker.connections.table.online} | (
        {"offline": status.absent_sessions} if status is not None else {}
    )


def _reads(broker: Broker) -> Value:
    return {"store": broker.deliverer.store_reads, "shared": broker.deliverer.shared_reads}


def _delivery_times(broker: Broker) -> Value:
    counts, sum_ms = broker.turn.delivery_times()
    return Times(counts, sum_ms / 1000, DELIVERY_BOUNDS_S)


TRAFFIC: tuple[Figure[Broker], ...] = (
    Figure("penstock_messages_received_total", "counter", "PUBLISH packets taken in.", _of_turn("received"), "qos"),
    Figure("penstock_messages_sent_total", "counter", "PUBLISH packets sent.", _of_turn("sent"), "qos"),
    Figure(
        "penstock_messages_dropped_total",
        "counter",
        "Messages a subscriber did not get: QoS 0 to one too far behind, expired, larger than it takes, unreadable, or "
        "lost in a damaged part of the log.",
        _dropped,
        "reason",
    ),
    Figure(
        "penstock_messages_refused_total",
        "counter",
        "Messages not taken in: the store could not, the client may not publish there, a quota is reached, or the "
        "payload is not what it says.",
        _refused,
        "reason",
    ),
    Figure(
        "penstock_received_payload_bytes_total",
        "counter",
        "Bytes of the payloads of PUBLISH packets taken in.",
        _of_turn("received_bytes"),
    ),
    Figure(
        "penstock_sent_payload_bytes_total",
        "counter",
        "Bytes of the payloads of PUBLISH packets sent.",
        _of_turn("sent_payload_bytes"),
    ),
    Figure(
        "penstock_packets_received_total", "counter", "MQTT packets of every kind received.", _of_turn("packets_in")
    ),
    Figure("penstock_packets_sent_total", "counter", "MQTT packets of every kind sent.", _of_turn("packets_out")),
    Figure("penstock_received_bytes_total", "counter", "Bytes received from clients.", _of_turn("bytes_in")),
    Figure("penstock_sent_bytes_total", "counter", "Bytes sent to clients.", _of_turn("sent_bytes")),
    Figure(
        "penstock_publish_acknowledged_seconds",
        "histogram",
        "From when the append of a QoS 1 or 2 PUBLISH began to its acknowledgement; without those that wait for a "
        "receipt.",
        lambda broker: Times.of(broker.journal.ack_times),
    ),
    Figure(
        "penstock_messages_acknowledged_total",
        "counter",
        "QoS 1 and 2 messages that a subscriber has acknowledged, or refused.",
        _of_turn("acknowledged"),
    ),
    Figure(
        "penstock_waiting_messages",
        "gauge",
        "Messages that connected clients have not acknowledged, or were not sent so far; counted once a second.",
        lambda broker: broker.silent.waiting,
    ),
    Figure(
        "penstock_inflight_messages",
        "gauge",
        "QoS 1 and 2 messages that connected clients have not acknowledged; counted once a second.",
        _of_turn("inflight"),
    ),
)

CLIENTS: tuple[Figure[Broker], ...] = (
    Figure(
        "penstock_connections",
        "gauge",
        "Network connections open.",
        lambda broker: broker.connections.table.connections,
    ),
    Figure(
        "penstock_connections_opened_total",
        "counter",
        "Network connections that clients opened.",
        lambda broker: broker.connections.table.sockets_total,
    ),
    Figure(
        "penstock_connects_total",
        "counter",
        "CONNECT packets accepted.",
        lambda broker: broker.connections.table.opened_total,
    ),
    Figure("penstock_sessions", "gauge", "Sessions with and without a connected client.", _sessions, "state"),
    Figure(
        "penstock_sessions_taken_over_total",
        "counter",
        "Connections ended because the same client identifier connected again.",
        lambda broker: broker.registry.taken_over,
    ),
    Figure(
        "penstock_subscriptions",
        "gauge",
        "Subscriptions of all sessions.",
        lambda broker: broker.status.subscription_count,
    ),
    Figure(
        "penstock_keep_alive_timeouts_total",
        "counter",
        "Connections closed because the client was silent for too long.",
        lambda broker: broker.silent.keep_alive_timeouts,
    ),
    Figure(
        "penstock_bad_input_total",
        "counter",
        "Connections closed over what the client sent, by MQTT 5 reason code.",
        lambda broker: broker.connections.bad_input,
        "reason",
    ),
)

DELIVERY: tuple[Figure[Broker], ...] = (
    Figure(
        "penstock_turns_total", "counter", "Loop turns in which there was something to do.", lambda broker: broker.turns
    ),
    Figure(
        "penstock_waiting_for_safe",
        "gauge",
        "Turns whose acknowledgements wait for the disk.",
        lambda broker: len(broker.journal),
    ),
    Figure(
        "penstock_delivery_seconds",
        "histogram",
        "From when the store had a message to its PUBLISH, where it was published while the subscriber was connected.",
        _delivery_times,
    ),
    Figure(
        "penstock_delivery_reads_total",
        "counter",
        "Reads of queues for delivery: from the store, and answered by another subscriber's read in the same turn.",
        _reads,
        "source",
    ),
    Figure(
        "penstock_events_total",
        "counter",
        "Queues that grew, as another process said: followed here or not; missed are those that only a re-check found.",
        lambda broker: broker.store.queues.events,
        "queue",
    ),
)

GATEWAY: Sections[Broker] = {"Traffic": TRAFFIC, "Clients": CLIENTS, "Delivery": DELIVERY, "Access": ACCESS}


def read_steps(broker: Broker | None, hub: Hub | None, link: RemoteStore | None = None) -> Iterator[list[Reading]]:
    """Every figure of a gateway's process; those of consumer groups some groups at a time.

    `hub`, `link`: of the store in this process, or the connection to another. Call this from the loop, which owns
    what is read; the answers are the caller's own.
    """
    audit = broker.core.audit if broker is not None else None
    messages, readers = (hub.messages, hub.readers) if hub is not None else (None, None)
    yield [
        *readings(GATEWAY, broker),
        *readings(AUDIT, audit),
        *readings(LINK, link),
        *readings(STORE, messages),
        *readings(LOG_READERS, readers),
    ]
    yield from group_steps(messages)
