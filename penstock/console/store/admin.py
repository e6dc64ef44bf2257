"""What only an admin may ask: the store says who is one, and the operator's connection carries it out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.console.store.errors import OperatorError, OperatorRefused, StoreTooOld
from penstock.console.store.operator import OperatorConnection
from store.wire.base import WireMessage
from store.wire.operator_messages import Sample, ServerShown

M = TypeVar("M", bound=WireMessage)


class AdminRequests:
    """Requests of admins. `operator` None: the console has no operator's token."""

    def __init__(self, operator: OperatorConnection | None) -> None:
        self._operator = operator

    async def operator(self, connection: StoreConnection) -> OperatorConnection:
        """The operator's connection, for a user who is an admin now. Raises Problem, or a ClientError."""
        rights = await connection.rights()
        if not rights.is_admin:
            raise Problem(
                403,
                "not-permitted",
                "this user may not see or touch what other clients have",
                'ask with a user whose rule in the permissions file has allow = ["admin"] and topics = ["#"]',
            )
        if self._operator is None:
            raise Problem(
                503,
                "no-operator",
                "this console is not let in as an operator",
                "give it the store's wire.operator_token (or wire.operator_token_file)",
            )
        return self._operator

    async def ask(self, connection: StoreConnection, message: WireMessage, kind: type[M]) -> M:
        """The answer to an admin's request. Raises Problem, or a ClientError."""
        operator = await self.operator(connection)
        with operator_problems():
            return await operator.ask(message, kind)

    async def server(self, connection: StoreConnection) -> tuple[ServerShown, dict[str, Any], list[Sample]]:
        """The server, its settings in force, and all of its figures. Raises Problem, or a ClientError."""
        operator = await self.operator(connection)
        with operator_problems():
            shown, figures = await operator.server()
        return shown, json.loads(shown.settings), figures

    async def gateway_samples(self, connection: StoreConnection) -> list[Sample]:
        """All figures of gateways that are processes of their own, with the label `gateway`. Raises as server()."""
        operator = await self.operator(connection)
        with operator_problems():
            reports = await operator.gateways(all_figures=True)
        return [
            (name, {**labels, "gateway": gateway}, value)
            for gateway, report in reports.items()
            if report is not None
            for name, labels, value in report.figures
        ]


@contextmanager
def operator_problems() -> Iterator[None]:
    """The operator's errors as problems. Raises Problem."""
    try:
        yield
    except StoreTooOld as error:
        raise Problem(501, "store-too-old", str(error), "upgrade the store") from None
    except OperatorRefused as error:
        raise Problem(400, error.code.replace("_", "-"), str(error), "see /api/docs") from None
    except OperatorError as error:
        raise Problem(503, "store-away", str(error), "ask again in a moment", {"Retry-After": "1"}) from None
