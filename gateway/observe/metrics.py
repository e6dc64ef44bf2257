"""What the gateway counts, as Prometheus metrics. The counters are plain integers; they are read when somebody asks.

The sections are the one list: /metrics and the tables in docs/operations.md come from it. Every value is a count that
its owner keeps, so that reading them all costs the same for ten sessions and for a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.broker import Broker
from gateway.mqtt.reason_codes import ReasonCode
from gateway.observe.access_metrics import ACCESS, WIRE_ACCESS
from gateway.observe.audit_metrics import AUDIT
from gateway.observe.figures import Figure, Source, Times, Value, joined
from gateway.observe.group_metrics import GROUPS, GroupPage, group_pages
from gateway.observe.wire_metrics import WIRE
from store.audit import Audit
from store.version import VERSION

if TYPE_CHECKING:  # a process has some of these only
    from lightqueue.message_store import MessageStore
    from notify.remote.store import RemoteStore
    from notify.server.server import StoreServer


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
    messages = broker.store.messages
    return {"online": broker.connections.table.online} | (
        {"offline": messages.sessions.offline} if messages is not None else {}
    )


def _reads(broker: Broker) -> Value:
    return {"store": broker.deliverer.store_reads, "shared": broker.deliverer.shared_reads}


def _delivery_times(broker: Broker) -> Value:
    counts, sum_ms = broker.turn.delivery_times()
    return Times(counts, sum_ms / 1000)


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
        lambda broker: broker.store.events,
        "queue",
    ),
)

STORE: tuple[Figure[MessageStore], ...] = (
    Figure(
        "penstock_queues",
        "gauge",
        "Queues held in memory; `remembered`: topics of which it is known where they end.",
        lambda store: store.queues.counts(),
        "kind",
    ),
    Figure(
        "penstock_stored_messages_total",
        "counter",
        "Messages given to their queues since the start, replayed ones included.",
        lambda store: store.queues.dispatcher.messages,
    ),
    Figure(
        "penstock_queue_entries_total",
        "counter",
        "Entries added to queues since the start, replayed ones included.",
        lambda store: store.queues.dispatcher.entries,
    ),
    Figure(
        "penstock_index_pending_entries",
        "gauge",
        "Queue entries that the index does not have yet.",
        lambda store: store.queues.dispatcher.pending,
    ),
    Figure(
        "penstock_index_writes_total",
        "counter",
        "Batches written to the index.",
        lambda store: store.index.writes,
    ),
    Figure(
        "penstock_sessions_expired_total",
        "counter",
        "Sessions that ended because nobody came back for them in time.",
        lambda store: store.absent.expired,
    ),
    Figure(
        "penstock_waiting_messages_of_absent_sessions",
        "gauge",
        "Messages that wait for sessions whose client is away; 50 sessions are counted at a time.",
        lambda store: store.waiting.messages,
    ),
    Figure(
        "penstock_retained_messages",
        "gauge",
        "Topics with a retained message, as of the last write of the index.",
        lambda store: len(store.retained),
    ),
    Figure(
        "penstock_delayed_pending",
        "gauge",
        "Delayed messages that are yet to be dispatched, as of the last write of the index.",
        lambda store: len(store.delayed),
    ),
    Figure(
        "penstock_delayed_late_seconds",
        "histogram",
        "How long after they were due delayed messages were dispatched.",
        lambda store: Times(store.dispatching.late, store.dispatching.late_ms / 1000),
    ),
    Figure(
        "penstock_delayed_dropped_total",
        "counter",
        "Delayed messages that were not dispatched: expired by then, or not in the log any more; and, with wills, "
        "not_allowed any more.",
        lambda store: {
            "expired": store.dispatching.expired,
            "lost": store.dispatching.lost,
            "not_allowed": store.dispatching.left.refused,
        },
        "reason",
    ),
    Figure(
        "penstock_left_messages_waiting",
        "gauge",
        "Wills and delayed messages that are due and wait for a gateway to judge them.",
        lambda store: len(store.dispatching.left),
    ),
    Figure(
        "penstock_log_first_log_offset",
        "gauge",
        "log_offset of the oldest record that is kept.",
        lambda store: store.log.first,
    ),
    Figure(
        "penstock_log_safe_log_offset",
        "gauge",
        "log_offset before which everything is as durable as the flush policy promises.",
        lambda store: store.safe,
    ),
    Figure("penstock_log_end_log_offset", "gauge", "log_offset behind the newest record.", lambda store: store.end),
    Figure(
        "penstock_log_bytes",
        "gauge",
        "Bytes that the log holds.",
        lambda store: store.end - store.log.first,
    ),
    Figure("penstock_log_segments", "gauge", "Files of the log.", lambda store: len(store.log.segments)),
    Figure("penstock_log_appends_total", "counter", "Batches appended to the log.", lambda store: store.log.appends),
    Figure(
        "penstock_log_syncs_total",
        "counter",
        "Times that the log was synced to disk (fdatasync).",
        lambda store: store.log.flusher.syncs,
    ),
    Figure(
        "penstock_log_sync_duration_seconds",
        "histogram",
        "How long each sync of the log to disk took.",
        lambda store: Times.of(store.log.flusher.sync_times),
    ),
    Figure(
        "penstock_disk_free_bytes",
        "gauge",
        "Room on the log's disk for the user that the store runs as; it keeps store.reserve_bytes of it.",
        lambda store: store.log.disk_free_bytes,
    ),
    Figure(
        "penstock_log_sync_seconds_total",
        "counter",
        "Seconds spent in syncing the log.",
        lambda store: store.log.flusher.sync_times.sum_s,
    ),
    Figure(
        "penstock_log_lost_bytes",
        "gauge",
        "Bytes of the log that are in quarantine: damaged, missing, or behind what the disk had confirmed.",
        lambda store: {str(kind): size for kind, size in store.log.lost_bytes.items()},
        "kind",
    ),
    Figure(
        "penstock_clock_jumps_total",
        "counter",
        "How often the store's clock was set by store.clock_jump_s or more.",
        lambda store: store.clock.jumps,
    ),
    Figure(
        "penstock_scrub_bytes_total",
        "counter",
        "Bytes of the log's sealed files that the scrubber has read again.",
        lambda store: store.scrubber.read_bytes,
    ),
    Figure(
        "penstock_scrub_passes_total",
        "counter",
        "Passes of the scrubber over all of the log's sealed files that came to their end.",
        lambda store: store.scrubber.passes,
    ),
    Figure(
        "penstock_scrub_damaged_bytes",
        "gauge",
        "Bytes in which the scrubber found damage when it last looked there, and files that have changed although "
        "their records are valid; 0 after the next start, which puts what is damaged in quarantine.",
        lambda store: {str(kind): size for kind, size in store.scrubber.found_bytes().items()},
        "kind",
    ),
    Figure(
        "penstock_log_replayed_bytes",
        "gauge",
        "Bytes of the log that were replayed at start, because the index did not have them.",
        lambda store: store.replayed_bytes,
    ),
)

LINK: tuple[Figure[RemoteStore], ...] = (
    Figure(
        "penstock_link_connected",
        "gauge",
        "1 while the gateway is connected to its store, otherwise 0.",
        lambda store: int(store.welcome is not None),
    ),
    Figure(
        "penstock_link_connects_total", "counter", "Connections that the store let in.", lambda store: store.connects
    ),
    Figure(
        "penstock_link_unstored_bytes",
        "gauge",
        "Bytes that were given to the store, and that it has not confirmed.",
        lambda store: store.unstored_bytes,
    ),
    Figure(
        "penstock_range_cache_hits_total",
        "counter",
        "Reads of queues answered by what was read before.",
        lambda store: store.cache.hits,
    ),
    Figure(
        "penstock_range_cache_misses_total",
        "counter",
        "Reads of queues for which the store was to be asked.",
        lambda store: store.cache.misses,
    ),
    Figure(
        "penstock_range_cache_bytes",
        "gauge",
        "Bytes kept of what was read; see gateway.range_cache_bytes.",
        lambda store: store.cache.size_bytes,
    ),
)


GATEWAY_SECTIONS: Mapping[str, tuple[Figure[Broker], ...]] = {
    "Traffic": TRAFFIC,
    "Clients": CLIENTS,
    "Delivery": DELIVERY,
    "Access": ACCESS,
}
STORE_SECTIONS: Mapping[str, tuple[Figure[MessageStore], ...]] = {"The store": STORE}
GROUP_SECTIONS: Mapping[str, tuple[Figure[GroupPage], ...]] = {"Consumer groups": GROUPS}
LINK_SECTIONS: Mapping[str, tuple[Figure[RemoteStore], ...]] = {"The link to the store": LINK}
WIRE_SECTIONS: Mapping[str, tuple[Figure[StoreServer], ...]] = {"The wire": WIRE, "Users of the wire": WIRE_ACCESS}
AUDIT_SECTIONS: Mapping[str, tuple[Figure[Audit], ...]] = {"The audit log": AUDIT}

AnyFigure: TypeAlias = (
    "Figure[Broker] | Figure[MessageStore] | Figure[GroupPage] | Figure[RemoteStore] | Figure[StoreServer]"
    " | Figure[Audit]"
)
Reading: TypeAlias = "tuple[AnyFigure, Value]"


def all_figures() -> Iterator[tuple[str, AnyFigure]]:
    """Every metric there is, with its section."""
    all_sections: tuple[Mapping[str, Iterable[AnyFigure]], ...] = (
        GATEWAY_SECTIONS,
        AUDIT_SECTIONS,
        LINK_SECTIONS,
        STORE_SECTIONS,
        GROUP_SECTIONS,
        WIRE_SECTIONS,
    )
    for sections in all_sections:
        for section, figures in sections.items():
            yield from ((section, figure) for figure in figures)


def read_steps(
    broker: Broker | None,
    messages: MessageStore | None,
    server: StoreServer | None = None,
    link: RemoteStore | None = None,
) -> Iterator[list[Reading]]:
    """Every metric of what is in this process, with its value; those of consumer groups some groups at a time.

    To be called from the loop, which owns what is read; the answers are the caller's own.
    """
    audit = broker.core.audit if broker is not None else server.audit if server is not None else None
    yield [
        *_readings(GATEWAY_SECTIONS, broker),
        *_readings(AUDIT_SECTIONS, audit),
        *_readings(LINK_SECTIONS, link),
        *_readings(STORE_SECTIONS, messages),
        *_readings(WIRE_SECTIONS, server),
    ]
    if messages is not None:
        for page in group_pages(messages):
            yield list(_readings(GROUP_SECTIONS, page))


def read_all(
    broker: Broker | None,
    messages: MessageStore | None,
    server: StoreServer | None = None,
    link: RemoteStore | None = None,
) -> list[Reading]:
    """read_steps(), all at once: each metric once."""
    return joined(read_steps(broker, messages, server, link))


def _readings(sections: Mapping[str, tuple[Figure[Source], ...]], source: Source | None) -> Iterator[Any]:
    if source is not None:
        for figure in (figure for section in sections.values() for figure in section):
            value = figure.read(source)
            yield figure, dict(value) if isinstance(value, Mapping) else value


class FigureCollector(Collector):
    """Gives a Prometheus registry what `ask` answers: the steps of read_steps(), each made by the loop."""

    def __init__(self, ask: Callable[[], Iterable[list[Reading]]]) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("penstock_build", "The version of Penstock.", {"version": VERSION})
        for figure, value in joined(self._ask()):
            yield figure.family(value)

    def describe(self) -> Iterator[Metric]:
        """The metrics without values, by which the registry finds names given twice."""
        return (figure.family({}) for _, figure in all_figures())
