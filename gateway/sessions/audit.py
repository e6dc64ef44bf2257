"""The lines of the audit log about connections that have a session."""

from __future__ import annotations

from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from store.audit import Audit, AuditEvent


def note_opened(audit: Audit, connection: Connection, peer: str, how: str) -> None:
    client_id: str = connection.session.client_id
    audit.note(AuditEvent.CONNECTED, user=connection.username, client_id=client_id, address=peer, reason=how)


def note_left(audit: Audit, connection: Connection, why: str, reason_code: ReasonCode | None) -> None:
    """`reason_code`: with which this side ended the connection; None if it did not."""
    event = AuditEvent.DISCONNECTED if reason_code is None else AuditEvent.CUT_OFF
    if reason_code is ReasonCode.SESSION_TAKEN_OVER:
        event = AuditEvent.TAKEN_OVER
    client_id: str = connection.session.client_id
    audit.note(event, user=connection.username, client_id=client_id, address=connection.peer, reason=why)
