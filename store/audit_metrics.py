"""Metrics of the audit log."""

from __future__ import annotations

from store.audit import Audit
from store.figures import Figure, Sections

_AUDIT: tuple[Figure[Audit], ...] = (
    Figure(
        "penstock_audit_events_total",
        "counter",
        "Events that the audit log of this process was told of, by kind.",
        lambda audit: audit.noted,
        "event",
    ),
    Figure(
        "penstock_audit_lost_total",
        "counter",
        "Events that the audit log does not have: the disk was full, failed or too slow.",
        lambda audit: audit.lost,
    ),
)

AUDIT: Sections[Audit] = {"The audit log": _AUDIT}
