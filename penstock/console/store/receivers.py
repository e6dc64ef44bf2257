"""Who has received a message: asked for an admin who may read the message, by pages."""

from __future__ import annotations

from penstock.console.errors import Problem
from penstock.console.store.admin import AdminRequests, operator_problems
from penstock.console.store.connection import StoreConnection
from penstock.console.store.errors import OperatorRefused
from penstock.console.store.operator import OperatorConnection
from penstock.sdk.errors import NotFound
from penstock.sdk.message_id import parse_message_id
from store.wire.messages import FailureCode
from store.wire.operator_messages import MessageReceivers, ReceiversFound


async def receivers_of(
    admin: AdminRequests, connection: StoreConnection, message_id: str, after: int
) -> ReceiversFound:
    """A page; `after`: 0, or `next` of the page before. Raises Problem, or a ClientError."""
    operator = await admin.operator(connection)
    _, log_offset = parse_message_id(message_id)
    try:
        await connection.at(message_id)
    except NotFound:
        await _asked(operator, log_offset, 0)  # it may say why there is none
        raise
    return await _asked(operator, log_offset, after)


async def _asked(operator: OperatorConnection, log_offset: int, after: int) -> ReceiversFound:
    with operator_problems():
        try:
            return await operator.ask(MessageReceivers(log_offset, after), ReceiversFound)
        except OperatorRefused as error:
            if error.code != FailureCode.NO_SUCH_POSITION:
                raise
            raise Problem(
                404,
                "no-such-message",
                str(error),
                "ask while the log has it (store.retention_age_s, store.retention_bytes)",
            ) from None
