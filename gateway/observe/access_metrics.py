"""Metrics of admission, permissions and quotas; a section of gateway/observe/metrics.py."""

from __future__ import annotations

from collections import Counter

from gateway.broker import Broker
from gateway.observe.namespace_metrics import NAMESPACES
from store.figures import Figure, Value


def _turned_away(broker: Broker) -> Value:
    """Refused connections by reason: those that other metrics count too, and those of `turned_away` alone."""
    found = Counter(broker.connections.turned_away) + broker.connections.limits.refused + broker.admission.refused
    found |= Counter(connecting_bytes=broker.connections.relief.shed["connecting"])
    found["banned"] = sum(broker.ban_sweep.bans.refused.values())  # some of them were refused at their CONNECT
    return {reason: float(count) for reason, count in found.items()}


ACCESS: tuple[Figure[Broker], ...] = (
    Figure(
        "penstock_connections_refused_total",
        "counter",
        "Connections closed at once since there were enough: in all, at the listener, from the address, or for the "
        "descriptors that the process may have.",
        lambda broker: broker.connections.limits.refused,
        "limit",
    ),
    Figure(
        "penstock_connections_turned_away_total",
        "counter",
        "Connections refused before their client had a session, whatever for: a limit, a ban, a stop, bad input, or "
        "the reason code of the CONNACK; clients that were sent away when they were judged again are in it.",
        _turned_away,
        "reason",
    ),
    Figure(
        "penstock_connects_refused_total",
        "counter",
        "Clients not let in, or sent away when they were judged again, by MQTT 5 reason code.",
        lambda broker: broker.admission.refused,
        "reason",
    ),
    Figure(
        "penstock_bans",
        "gauge",
        "Addresses and networks, users and client identifiers that this gateway keeps out, by kind.",
        lambda broker: broker.ban_sweep.bans.counts(),
        "kind",
    ),
    Figure(
        "penstock_ban_refused_total",
        "counter",
        "Connections refused because of a ban, by what is banned.",
        lambda broker: broker.ban_sweep.bans.refused,
        "kind",
    ),
    Figure(
        "penstock_logins_limited_total",
        "counter",
        "Logins refused unheard since too many failed: of the user at that address, at that address, of the user.",
        lambda broker: broker.admission.recognition.limited,
        "by",
    ),
    Figure(
        "penstock_logins_failed_total",
        "counter",
        "Logins that were wrong, or refused unheard.",
        lambda broker: broker.admission.recognition.failures,
    ),
    Figure(
        "penstock_connects_abandoned_total",
        "counter",
        "Clients that left before they had an answer, so that what waited for them was cancelled.",
        lambda broker: broker.admission.abandoned,
    ),
    Figure(
        "penstock_incomplete_bytes",
        "gauge",
        "Kept of packets and handshakes that are not whole: of connections without a session, and of others.",
        lambda broker: {"connecting": broker.turn.kept_bytes(False), "connected": broker.turn.kept_bytes(True)},
        "phase",
    ),
    Figure(
        "penstock_incomplete_closed_total",
        "counter",
        "Connections closed since gateway.connecting_bytes or gateway.incomplete_bytes was used up.",
        lambda broker: broker.connections.relief.shed,
        "phase",
    ),
    Figure(
        "penstock_connects_waiting",
        "gauge",
        "Clients that wait to hear if they may come in.",
        lambda broker: broker.admission.waiting,
    ),
    Figure(
        "penstock_auth_requests_total",
        "counter",
        "HTTP requests about clients, and for keys: sent; failed, of these; and spared, since they would fail or wait.",
        lambda broker: broker.admission.recognition.requests,
        "outcome",
    ),
    Figure(
        "penstock_permission_refused_total",
        "counter",
        "What permissions did not allow; taken_away are subscriptions that a reload or a reconnection ended; "
        "withheld are messages in flight to them; left are wills and delayed messages; "
        "session are clients that asked for another user's session.",
        lambda broker: broker.guard.refused,
        "action",
    ),
    Figure(
        "penstock_quota_refused_total",
        "counter",
        "What was refused because a quota is reached.",
        lambda broker: {**broker.places.quotas.refused, **broker.places.counting.refused},
        "quota",
    ),
    Figure(
        "penstock_quota_pauses_total",
        "counter",
        "Times that a client was not listened to for a while because it had published its share.",
        lambda broker: broker.places.quotas.pauses,
    ),
    *NAMESPACES,
)
