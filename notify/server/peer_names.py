"""Owners of peers' names. The store knows a peer's Appends by its name, so nobody else may use that name.

Each namespace has its own names, as it has its own topics: the log has them with a prefix, `$ns:acme/NAME`; those of
clients that see the whole log with `$ns:*/`. The default namespace and gateways have names without one. Logs from
before that have no prefix: such a name stays that of the namespace whose client had it, under that name, until it is
forgotten. Where a client of the default namespace has the same name meanwhile, that is `$ns:/NAME` in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from notify.local.own_names import ALL
from store.namespaces import MARK
from store.state.changes import PeerOwner
from store.state.peers import PeerState, PeerStates
from store.wire.base import PRODUCER
from store.wire.messages import Role


class NamedPeer(Protocol):
    """A peer that the store knows, connected or not."""

    role: Role | None
    owner: PeerOwner


Known = tuple[Role | None, PeerOwner | None]
"""Role and owner of who has a name, or had it as the log says; None: that is not known."""
NOBODY: Known = (None, None)


class PeerNames:
    """The names of the log, and who has them."""

    def __init__(self, peers: Mapping[str, NamedPeer], states: PeerStates) -> None:
        self._peers = peers
        self._states = states

    def known(self, name: str) -> Known:
        """The role and owner of a name of the log; also of a peer whose lease has ended."""
        peer, state = self._peers.get(name), self._states.get(name)
        if peer is not None and peer.role is not None:
            return peer.role, peer.owner
        return role_of(state), state.owner if state is not None else None

    def of(self, role: Role, namespace: str, name: str) -> str:
        """The log's name of a peer that says to be called so."""
        if role is not Role.CLIENT:
            return name
        own, (bare_role, bare_owner) = prefix_of(namespace) + name, self.known(name)
        is_ones = bare_role is Role.CLIENT and (bare_owner is None or bare_owner[1] == namespace)
        is_free = not namespace and (bare_role is not Role.CLIENT or is_ones)
        return name if (is_ones or is_free) and self.known(own) == NOBODY else own

    def shown(self, viewer: str, name: str) -> str:
        """A name of the log as another peer may see it; empty: it may not."""
        peer = self._peers.get(viewer)
        if peer is None or peer.role is not Role.CLIENT:
            return name
        is_shown = name == viewer or shows(peer.owner, *self.known(name))
        return name.removeprefix(prefix_of(peer.owner[1])) if is_shown else ""


def prefix_of(namespace: str) -> str:
    return f"{MARK}{namespace}/"


def is_producers(name: str) -> bool:
    """Whether a name of the log is that of a client that may send again what it sent after a long time."""
    return (name.partition("/")[2] if name.startswith(MARK) else name).startswith(PRODUCER)


def name_fault(role: Role, owner: PeerOwner, known_role: Role | None, known: PeerOwner | None) -> str:
    """Why a peer may not have a name; empty: it may. `known`: the role and the owner that the name has, as far as the
    store knows; the owner of an older log is whoever comes first.

    Where users are not known, a name is of its namespace alone; so it is for the first user who comes later.

    >>> name_fault(Role.CLIENT, ("ann", ""), Role.CLIENT, ("bob", ""))
    "is that of another user's client; choose another name"
    """
    if known_role not in (None, role):
        return f"is that of a {known_role}"
    if role is not Role.CLIENT or known is None:
        return ""
    (user, namespace), (known_user, known_namespace) = owner, known
    if user != known_user and None not in (user, known_user):
        return "is that of another user's client; choose another name"
    return "is that of another namespace's client; choose another name" if namespace != known_namespace else ""


def role_of(state: PeerState | None) -> Role | None:
    """The role of a peer, by its state in the log."""
    if state is None:
        return None
    return Role.CLIENT if state.is_client else Role.GATEWAY


def shows(viewer: PeerOwner, role: Role | None, owner: PeerOwner | None) -> bool:
    """Whether a client may see a name: of a client of its user, where users are known, and its namespace; of a gateway,
    unless it is a tenant's.
    """
    user, namespace = viewer
    if role is not Role.CLIENT:
        return role is Role.GATEWAY and namespace in ("", ALL)
    return owner is not None and user == owner[0] and namespace in (owner[1], ALL)
