"""What an admitted client takes: a place in its namespace and its user's quotas, and permissions. No I/O."""

from __future__ import annotations

from gateway.access.guard import Guard
from gateway.access.quotas import Quotas
from gateway.auth.access import Access
from gateway.auth.identity import Identity, LoginRefused
from gateway.auth.namespaces import settled
from gateway.clients.counting import Counting
from gateway.clients.tenants import Tenants
from gateway.mqtt.packets import Connect
from gateway.sessions.connection import Connection


class ClientPlaces:
    """Gives clients their places, and frees them."""

    def __init__(
        self, access: Access | None, guard: Guard, quotas: Quotas, counting: Counting, tenants: Tenants
    ) -> None:
        self._access = access
        self._guard = guard
        self.quotas, self.counting, self.tenants = quotas, counting, tenants

    def enter(self, connection: Connection, connect: Connect, identity: Identity) -> Identity | LoginRefused:
        """Put a client into its namespace. Returns its identity there, or why it is refused."""
        entrance = connection.entrance
        named = (
            ("the listener", entrance.namespace if entrance is not None else ""),
            ("its certificate", connection.peer_namespace),
        )
        separator = self._access.namespace_separator if self._access is not None else ""
        found = settled(identity, named, separator)
        if isinstance(found, LoginRefused):
            return found
        return self.tenants.enter(connection, connect, found.namespace) or found

    def fault(self, connection: Connection, user: str, held: Connection | None) -> str:
        """The quota that refuses one more connection; empty: none. A connection may always replace `held`."""
        return self.quotas.fault(user, connection.names.name, held)

    def take(self, connection: Connection, user: str) -> None:
        """Count the connection, and have its topics checked from now on."""
        self.quotas.entered(connection, user)
        self._guard.watch(connection, self.counting.watch(connection))

    def left(self, connection: Connection) -> None:
        """The connection has ended."""
        self.tenants.left(connection)
        if connection.session is not None:
            self.counting.left(connection.session)
        self.quotas.left(connection, connection.username)
