"""Describes a connected client for operators."""

from __future__ import annotations

from itertools import islice

from gateway.clients.registry import GRACE
from gateway.sessions.session import Session
from store.wire.operator_messages import ClientDetails

MOST_SUBSCRIPTIONS = 1_000
"""Subscriptions of one client that are listed, and whose lag is added up."""


def describe(session: Session) -> ClientDetails | None:
    """The details of a session's client; None: its connection has ended."""
    link = session.link
    if link is None:
        return None
    readers = list(islice(session.readers.values(), MOST_SUBSCRIPTIONS))
    shares = list(islice(session.shares, MOST_SUBSCRIPTIONS))
    transport = link.transport
    is_tls = transport is not None and bool(transport.get_extra_info("is_tls"))
    return ClientDetails(
        link.version,
        round(link.keep_alive_s / GRACE),
        link.durable,
        is_tls,
        link.opened_ms,
        len(session.inflight),
        session.inflight.window,
        len(session.backlog),
        sum(max(0, reader.queue.next_offset - reader.position) for reader in readers),
        link.unread_bytes,
        [*((reader.topic_filter, reader.qos) for reader in readers), *((share, None) for share in shares)],
    )
