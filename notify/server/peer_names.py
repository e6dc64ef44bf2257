"""Whose the name of a peer is. Under it the store knows what it has of a peer's Appends, so nobody else may use it."""

from __future__ import annotations

from notify.local.own_names import ALL
from store.state.changes import PeerOwner
from store.state.peers import PeerState
from store.wire.messages import Role


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
    """By what the log says."""
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
