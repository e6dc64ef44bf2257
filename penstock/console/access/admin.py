"""Who may do what touches other clients: a user with the right `admin`, which the store is asked for each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.console.errors import Problem

if TYPE_CHECKING:
    from penstock.console.access.callers import Caller
    from penstock.console.access.state import ConsoleState
    from penstock.console.store.operator import OperatorConnection


async def operator_for(console: ConsoleState, caller: Caller) -> OperatorConnection:
    """The operator's connection, for an admin. Raises Problem or a ClientError."""
    rights = await caller.connection.rights()
    if not rights.is_admin:
        raise Problem(
            403,
            "not-admin",
            "this needs the right `admin`, which this user does not have",
            'log in as a user whose permissions have allow = ["admin"]',
        )
    if console.operator is None:
        raise Problem(
            503,
            "no-operator",
            "this console has no token of an operator",
            "start it with wire.operator_token of the store",
        )
    return console.operator


def by(caller: Caller) -> str:
    """Who did it, for the audit log."""
    return f"{caller.user or 'a user without a name'} at the console"
