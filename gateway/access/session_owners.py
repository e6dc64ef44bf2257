"""Sessions belong to users: a client whose user does not own its session is refused (docs/adr/0030). No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gateway.access.guard import Guard
from gateway.auth.access import Access
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from gateway.sessions.core import Core
from notify.owners import Claimant
from notify.steps import Awaited
from store.audit import AuditEvent

JUDGED_AT_A_TIME = 20  # filters of one session in a turn


class SessionOwners:
    """Asks for sessions on behalf of users, and refuses clients that may not have theirs."""

    def __init__(self, core: Core, access: Access | None, guard: Guard) -> None:
        self._access = access
        self._guard = guard
        self._events = core.events
        self._audit = core.audit
        self._soon = core.scheduler.soon

    def claimant(self, connection: Connection, reads: Sequence[str] = ()) -> Claimant:
        """The user on whose behalf a session is claimed. `reads`: filters that the client's permissions allow."""
        access = self._access
        adopts_anonymous = access is not None and access.refuses_anonymous
        user, counts = connection.username, access is not None and access.knows_users
        return Claimant(user, self._guard.is_open(connection), reads, adopts_anonymous, connection.peer, counts)

    def refuse_session(self, connection: Connection, client_id: str, has_owner: bool) -> None:
        """Refuse a client that may not have the session that it asked for: log, audit, and close the connection."""
        self._guard.refused["session"] += 1
        user = f"user {connection.username}" if connection.username else "an anonymous client"
        why = "another user owns it" if has_owner else "its owner is not known, and not all it subscribes to is allowed"
        told = "%s: refused: the session of client %s is not for %s: %s; `penstock client assign` gives it to a user"
        self._events.warning("session", told, connection.peer, client_id, user, why)
        reason = f"the session is not for it: {why}"
        address, user = connection.peer, connection.username
        self._audit.note(AuditEvent.REFUSED, user=user, client_id=client_id, address=address, reason=reason)
        connection.close(ReasonCode.NOT_AUTHORIZED, "the client identifier is another user's")

    def refuse_quota(self, connection: Connection, client_id: str, why: str) -> None:
        """Refuse a client whose user has as many sessions as the quota allows."""
        address, user = connection.peer, connection.username
        self._events.warning("quota", "%s: client %s refused: %s", address, client_id, why)
        self._audit.note(AuditEvent.REFUSED, user=user, client_id=client_id, address=address, reason=why)
        connection.close(ReasonCode.QUOTA_EXCEEDED, why)

    def may_adopt(
        self, connection: Connection, client_id: str, topic_filters: Sequence[str], then: Callable[[bool], None]
    ) -> None:
        """Check whether a client may read all subscriptions of a session without an owner, a few in each turn."""
        identity = connection.identity
        if identity is None or not topic_filters:
            then(not topic_filters)
            return
        some, rest = topic_filters[:JUDGED_AT_A_TIME], topic_filters[JUDGED_AT_A_TIME:]
        least = 0

        def all_heard() -> None:
            if least < 0 or not rest:
                then(least >= 0)
            else:
                self._soon(partial(self.may_adopt, connection, client_id, rest, then))

        awaited = Awaited(len(some), all_heard)

        def heard(allowed: int) -> None:
            nonlocal least
            least = min(least, allowed)
            awaited.came()

        for topic_filter in some:
            self._guard.may_read(connection, client_id, topic_filter, heard)
