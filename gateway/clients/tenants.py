"""A gateway's record of each namespace. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from gateway.auth.identity import LoginRefused
from gateway.mqtt._tenants import Tenant
from gateway.mqtt.packets import Connect
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from store.namespaces import MARK, Namespace, is_reserved

MOST_CLIENT_ID_BYTES = 65_535


class Tenants:
    """Owner of this gateway's records of namespaces: at most `most` at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()  # the one that a client entered last is at the end

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def enter(self, connection: Connection, connect: Connect, namespace: str) -> LoginRefused | None:
        """Put a client into a namespace (empty: the default one), and translate its client identifier to the log's.

        Returns why the client is refused; None: it entered.
        """
        if is_reserved(connect.client_id):
            fault = f"client identifiers that begin with {MARK} are the server's"
            return LoginRefused(fault, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
        if not namespace:
            return None
        tenant = self._tenant(namespace)
        if tenant is None:
            return LoginRefused("gateway.max_namespaces are connected", ReasonCode.QUOTA_EXCEEDED)
        client_id = tenant.names.client_id(connect.client_id) if connect.client_id else ""
        if len(client_id.encode()) > MOST_CLIENT_ID_BYTES:
            fault = f"with its namespace it has more than {MOST_CLIENT_ID_BYTES} bytes"
            return LoginRefused(f"client identifier: {fault}", ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
        connect.client_id = client_id
        connection.tenant = tenant
        tenant.connections += 1
        return None

    def enter_again(self, connection: Connection, namespace: str) -> None:
        """Put a client that another process handed over into its namespace."""
        connection.tenant = self._tenant(namespace) if namespace else None
        if connection.tenant is not None:
            connection.tenant.connections += 1

    def left(self, connection: Connection) -> None:
        if connection.tenant is not None:
            connection.tenant.connections -= 1

    def _tenant(self, name: str) -> Tenant | None:
        """The record of a namespace, made if needed; None: all of the `most` namespaces have clients."""
        found = self._tenants.get(name)
        if found is None:
            if len(self._tenants) >= self.most:
                idle = next((each for each, tenant in self._tenants.items() if not tenant.connections), None)
                if idle is None:
                    return None
                del self._tenants[idle]
            found = self._tenants[name] = Tenant(Namespace(name))
        self._tenants.move_to_end(name)
        return found
