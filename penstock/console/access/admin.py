"""Who may do what touches other clients: a user with the right `admin`, which the store is asked for each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.console.access.callers import Caller
    from penstock.console.access.state import ConsoleState
    from penstock.console.store.operator import OperatorConnection


async def operator_for(console: ConsoleState, caller: Caller) -> OperatorConnection:
    """The operator's connection, for an admin. Raises Problem or a ClientError."""
    return await console.admin.operator(caller.connection)


def by(caller: Caller) -> str:
    """Who did it, for the audit log."""
    return f"{caller.user or 'a user without a name'} at the console"
