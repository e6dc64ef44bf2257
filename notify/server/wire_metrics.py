"""Metrics of a store's connections to gateways and clients."""

from __future__ import annotations

from collections.abc import Iterator

from lightqueue.store_metrics import STORE, group_steps
from notify.local.log_readers import LOG_READERS
from notify.server.server import StoreServer
from store.audit_metrics import AUDIT
from store.figures import Figure, Reading, Sections, Times, readings

_WIRE: tuple[Figure[StoreServer], ...] = (
    Figure(
        "penstock_wire_connections",
        "gauge",
        "Connections of gateways and clients to the store.",
        lambda server: len(server.connections),
    ),
    Figure(
        "penstock_wire_connections_opened_total",
        "counter",
        "Connections that were made to the store.",
        lambda server: server.connections_total,
    ),
    Figure(
        "penstock_wire_peers",
        "gauge",
        "Gateways and clients that are connected, or are waited for until their lease ends.",
        lambda server: len(server.peers),
    ),
    Figure(
        "penstock_wire_leases_ended_total",
        "counter",
        "Gateways and clients given up because they were not heard of for lease_ms.",
        lambda server: server.peers.leases_ended,
    ),
    Figure(
        "penstock_wire_appends_total",
        "counter",
        "Appends that came, refused and repeated ones included.",
        lambda server: server.figures.appends,
    ),
    Figure(
        "penstock_wire_request_seconds",
        "histogram",
        "From when a request came to its answer, by the request; Append and Publish wait for the disk, a Pop for "
        "messages.",
        lambda server: {name: Times.of(times) for name, times in server.figures.request_times.items()},
        "request",
    ),
    Figure(
        "penstock_wire_reads_total",
        "counter",
        "Requests that read records.",
        lambda server: server.figures.reads,
    ),
    Figure(
        "penstock_wire_pushes_total",
        "counter",
        "Records sent without a request, to who had read a queue to its end.",
        lambda server: server.figures.pushes,
    ),
    Figure(
        "penstock_wire_events_total",
        "counter",
        "Events sent that say which queues grew.",
        lambda server: server.figures.events,
    ),
    Figure(
        "penstock_wire_named_events_total",
        "counter",
        "Events sent that name queues, to gateways that may not follow them.",
        lambda server: server.figures.named_events,
    ),
    Figure(
        "penstock_wire_gateways",
        "gauge",
        "Gateways by what they are told of: what they watch, or everything.",
        lambda server: server.hub.told(),
        "told",
    ),
    Figure(
        "penstock_wire_received_bytes_total",
        "counter",
        "Bytes received from gateways and clients.",
        lambda server: server.figures.received_bytes,
    ),
    Figure(
        "penstock_wire_sent_bytes_total",
        "counter",
        "Bytes sent to gateways and clients.",
        lambda server: server.figures.sent_bytes,
    ),
    Figure(
        "penstock_wire_bad_input_total",
        "counter",
        "Connections closed over what came on them: malformed, not let in, too late, too many.",
        lambda server: server.bad_input,
        "reason",
    ),
)

_USERS: tuple[Figure[StoreServer], ...] = (
    Figure(
        "penstock_wire_permission_refused_total",
        "counter",
        "Requests of clients of a store that their users may not make.",
        lambda server: server.figures.not_permitted,
    ),
    Figure(
        "penstock_wire_quota_refused_total",
        "counter",
        "What was refused to gateways and clients because a user has as much as it may have.",
        lambda server: {**server.hub.quotas.refused, **server.hub.consumers.quota_refused},
        "quota",
    ),
)

WIRE: Sections[StoreServer] = {"The wire": _WIRE, "Users of the wire": _USERS}


def read_steps(server: StoreServer) -> Iterator[list[Reading]]:
    """Every figure of a store's process; those of consumer groups some groups at a time.

    Call this from the loop, which owns what is read; the answers are the caller's own.
    """
    messages = server.hub.messages
    yield [
        *readings(AUDIT, server.audit),
        *readings(STORE, messages),
        *readings(LOG_READERS, server.hub.readers),
        *readings(WIRE, server),
    ]
    yield from group_steps(messages)
