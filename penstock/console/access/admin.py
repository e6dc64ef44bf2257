"""Who may do what touches other clients: a user with the right `admin`, which the store is asked for each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from penstock.console.access.callers import Caller
    from penstock.console.access.state import ConsoleState
    from penstock.console.store.operator import OperatorConnection

MOST_SHOWN = 512
"""Characters of a user's name in the audit log."""


async def operator_for(console: ConsoleState, caller: Caller) -> OperatorConnection:
    """The operator's connection, for an admin. Raises Problem or a ClientError."""
    return await console.admin.operator(caller.connection)


def by(request: HTTPConnection, caller: Caller) -> str:
    """Who does it, for the audit log: the name that the store found."""
    address = request.client.host if request.client is not None else "?"
    return f"{caller.user[:MOST_SHOWN] or 'a user without a name'} by the console from {address}"
