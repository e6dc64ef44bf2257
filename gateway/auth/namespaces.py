"""The namespace of a user. No I/O.

Listener, certificate, user name, token and hook may each name a namespace; those that do must name the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.auth.identity import Identity, LoginRefused
from gateway.mqtt.reason_codes import ReasonCode
from store.namespaces import MARK, NAME_SHAPE, is_namespace


def login_name(username: str | None, namespace: str, separator: str) -> str | None:
    """The full name of a user whose namespace the listener or the certificate names."""
    if username is None or not namespace or not separator or separator in username:
        return username
    return f"{namespace}{separator}{username}"


def settled(identity: Identity, named: Iterable[tuple[str, str]], separator: str) -> Identity | LoginRefused:
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
    if username.startswith(MARK):
        return LoginRefused(
            f"a user whose name begins with {MARK}, as users of namespaces do", ReasonCode.NOT_AUTHORIZED
        )
    if not said:
        return identity
    first_by, found = said[0]
    for by, namespace in said:
        if not is_namespace(namespace):
            return LoginRefused(
                f"{by} names the namespace {namespace[:40]!r}; it has {NAME_SHAPE}", ReasonCode.NOT_AUTHORIZED
            )
        if namespace != found:
            fault = f"{first_by} names the namespace {found}, {by} {namespace}"
            return LoginRefused(fault, ReasonCode.NOT_AUTHORIZED)
    return replace(identity, namespace=found, username=username, login=identity.login or identity.username)
