"""Which namespace a client is of, and what is kept of each namespace here. No I/O.

Listener, certificate, user name, token and hook may each name a namespace; those that do must name the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gateway.auth.identity import Identity, Refused
from gateway.mqtt._mqtt import Tenant
from gateway.mqtt.packets import Connect
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from store.namespaces import MARK, NAME_SHAPE, Namespace, is_namespace, is_reserved

MOST_CLIENT_ID_BYTES = 65_535


class Tenants:
    """Owner of what is known of namespaces at this gateway: at most so many at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()  # the one that was entered last is the last

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def enter(self, connection: Connection, connect: Connect, namespace: str) -> Refused | None:
        """Have a client be of a namespace (empty: the default one): its client identifier is that of the log then."""
        if is_reserved(connect.client_id):
            fault = f"client identifiers that begin with {MARK} are the server's"
            return Refused(fault, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
        if not namespace:
            return None
        tenant = self._tenant(namespace)
        if tenant is None:
            return Refused("gateway.max_namespaces are connected", ReasonCode.QUOTA_EXCEEDED)
        client_id = tenant.names.client_id(connect.client_id) if connect.client_id else ""
        if len(client_id.encode()) > MOST_CLIENT_ID_BYTES:
            fault = f"with its namespace it has more than {MOST_CLIENT_ID_BYTES} bytes"
            return Refused(f"client identifier: {fault}", ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
        connect.client_id = client_id
        connection.tenant = tenant
        tenant.connections += 1
        return None

    def left(self, connection: Connection) -> None:
        if connection.tenant is not None:
            connection.tenant.connections -= 1

    def _tenant(self, name: str) -> Tenant | None:
        """None: there are as many as there may be, and all of them have clients."""
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


def login_name(username: str | None, namespace: str, separator: str) -> str | None:
    """How a user is called where all namespaces are known, of whom the listener or certificate names the namespace."""
    if username is None or not namespace or not separator or separator in username:
        return username
    return f"{namespace}{separator}{username}"


def settled(identity: Identity, named: Iterable[tuple[str, str]], separator: str) -> Identity | Refused:
    """The same with its namespace, and the user's name without it.

    `named`: (by what, which) others than the identity itself name one; an empty one names none.
    """
    said = [(by, namespace) for by, namespace in named if namespace]
    if identity.namespace:
        said.append(("its credentials", identity.namespace))
    username = identity.username
    if separator and separator in username:
        namespace, _, username = username.partition(separator)
        said.append(("its user name", namespace))
    if not said:
        return identity
    first_by, found = said[0]
    for by, namespace in said:
        if not is_namespace(namespace):
            return Refused(
                f"{by} names the namespace {namespace[:40]!r}; it has {NAME_SHAPE}", ReasonCode.NOT_AUTHORIZED
            )
        if namespace != found:
            fault = f"{first_by} names the namespace {found}, {by} {namespace}"
            return Refused(fault, ReasonCode.NOT_AUTHORIZED)
    return replace(identity, namespace=found, username=username, login=identity.login or identity.username)
