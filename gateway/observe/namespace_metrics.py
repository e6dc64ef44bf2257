"""Metrics of each namespace, a part of access_metrics.py. There are as many as gateway.max_namespaces.

The default namespace has none of these: what all do together is in the other sections.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.broker import Broker
from gateway.mqtt._tenants import Tenant
from store.figures import Figure


def _of_each(read: Callable[[Tenant], int]) -> Callable[[Broker], dict[str, float]]:
    return lambda broker: {tenant.names.name: read(tenant) for tenant in broker.places.tenants}


def _sessions(broker: Broker) -> dict[str, float]:
    """Sessions of the namespaces that have the most. A gateway whose store is another process does not know them."""
    status = broker.store.status
    return status.sessions_by_namespace(broker.places.tenants.most) if status is not None else {}


NAMESPACES: tuple[Figure[Broker], ...] = (
    Figure(
        "penstock_namespace_connections",
        "gauge",
        "Clients connected to this gateway, by namespace.",
        _of_each(lambda tenant: tenant.connections),
        "namespace",
    ),
    Figure(
        "penstock_namespace_sessions",
        "gauge",
        "Sessions of a namespace, connected or not, where the store is in the same process; those with the most.",
        _sessions,
        "namespace",
    ),
    Figure(
        "penstock_namespace_messages_received_total",
        "counter",
        "Messages taken from the clients of a namespace.",
        _of_each(lambda tenant: tenant.received),
        "namespace",
    ),
    Figure(
        "penstock_namespace_messages_sent_total",
        "counter",
        "Messages sent to the clients of a namespace.",
        _of_each(lambda tenant: tenant.sent),
        "namespace",
    ),
    Figure(
        "penstock_namespace_received_payload_bytes_total",
        "counter",
        "Payload bytes of those taken.",
        _of_each(lambda tenant: tenant.received_bytes),
        "namespace",
    ),
    Figure(
        "penstock_namespace_sent_payload_bytes_total",
        "counter",
        "Payload bytes of those sent.",
        _of_each(lambda tenant: tenant.sent_bytes),
        "namespace",
    ),
)
