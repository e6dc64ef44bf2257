"""Checks that the credentials of a connected client are still valid: its password, its token's key. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gateway.auth.access import NO_REQUESTS, Access
from gateway.auth.attempts import LIMITS
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection

GONE = ("its password was changed or taken away", "the key of its token was taken away")


class Recognition:
    """Checks connected clients against the users and keys of `access`. Without `access` every client is valid."""

    def __init__(self, access: Access | None) -> None:
        self.access = access
        self.refused: Counter[str] = Counter({"not_authorized": 0})  # connections, by the name of the reason code

    def is_known(self, connection: Connection) -> bool:
        """True if the credentials that the client logged in with are still valid."""
        return connection.identity is None or self.access is None or self.access.still_knows(connection.identity)

    def check(self, connection: Connection) -> bool:
        """Close the connection if the client's credentials are no longer valid. Returns whether they are."""
        if self.is_known(connection):
            return True
        self.count_disproved()
        connection.close(ReasonCode.NOT_AUTHORIZED, GONE[bool(connection.identity and connection.identity.key)])
        return False

    def count_disproved(self) -> None:
        """Count a client that is closed because its credentials or its certificate are no longer valid."""
        self.refused["not_authorized"] += 1

    @property
    def limited(self) -> Mapping[str, int]:
        """Login attempts that were refused without a check of the credentials, by limit."""
        return self.access.attempts.limited if self.access is not None else dict.fromkeys(LIMITS, 0)

    @property
    def failures(self) -> int:
        """Login attempts with wrong credentials."""
        return self.access.attempts.failures if self.access is not None else 0

    @property
    def requests(self) -> Mapping[str, int]:
        """Requests to other servers about clients, by outcome."""
        return self.access.requests if self.access is not None else NO_REQUESTS
