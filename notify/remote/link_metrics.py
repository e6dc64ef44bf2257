"""Metrics of a gateway's connection to its store."""

from __future__ import annotations

from notify.remote.store import RemoteStore
from store.figures import Figure, Sections

_LINK: tuple[Figure[RemoteStore], ...] = (
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
        lambda store: store.appends.unstored_bytes,
    ),
    Figure(
        "penstock_range_cache_hits_total",
        "counter",
        "Reads of queues answered by what was read before.",
        lambda store: store.queues.ranges.cache.hits,
    ),
    Figure(
        "penstock_range_cache_misses_total",
        "counter",
        "Reads of queues for which the store was to be asked.",
        lambda store: store.queues.ranges.cache.misses,
    ),
    Figure(
        "penstock_range_cache_bytes",
        "gauge",
        "Bytes kept of what was read; see gateway.range_cache_bytes.",
        lambda store: store.queues.ranges.cache.size_bytes,
    ),
)

LINK: Sections[RemoteStore] = {"The link to the store": _LINK}
