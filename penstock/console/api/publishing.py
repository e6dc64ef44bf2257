"""POST /api/v1/messages: the hot route. It decodes and encodes with msgspec, and passes FastAPI's dependencies by."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.console.access.callers import Caller
from penstock.console.access.problem_answer import problem_answer
from penstock.console.access.state import ConsoleState, caller_of, console_of
from penstock.console.api.document import BODY_TO_PUBLISH
from penstock.console.api.parameters import refuse_unknown
from penstock.console.api.problems import ProblemDetails, problem_of
from penstock.console.errors import Problem
from penstock.console.store.publishing import (
    MOST_MESSAGES,
    MessageToPublish,
    Outcome,
    PublishReceipt,
    publish_all,
)
from penstock.sdk.errors import ClientError

PATH = "/api/v1/messages"
JSON = "application/json"
MULTI_STATUS = 207

router = APIRouter(tags=["messages"])
_decode_one = msgspec.json.Decoder(MessageToPublish).decode
_decode_many = msgspec.json.Decoder(list[MessageToPublish]).decode
_encode = msgspec.json.Encoder().encode


class ReceiptModel(BaseModel):
    """Where a message is stored. It is as safe as the flush policy of the store promises."""

    message_id: str = Field(description="GET /messages/{id} finds the message by it.")
    log_offset: int = Field(description="Its place in the log, in bytes.")
    queue_offset: int | None = Field(description="Its place in its topic; null for a delayed or live-only message.")


class ReceiptsModel(BaseModel):
    """The receipts of a list, in its order."""

    receipts: list[ReceiptModel]


class MixedReceiptsModel(BaseModel):
    """The outcomes of a list of which some were not stored, in its order: a receipt has a message_id, a problem has a
    type.
    """

    receipts: list[ReceiptModel | ProblemDetails]


@router.post(
    "/messages",
    operation_id="publish_messages",
    summary="Publish one message, or a list",
    response_model=ReceiptModel | ReceiptsModel,
    status_code=201,
    responses={MULTI_STATUS: {"model": MixedReceiptsModel, "description": "Some of a list are not stored."}},
    openapi_extra={
        "requestBody": BODY_TO_PUBLISH,
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "A request that is sent again with the same key and body is carried out once.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        ],
    },
)
async def publish(request: Request) -> Response:
    """The answer comes once the messages are as safe as the flush policy of the store promises: the receipt of one
    message, or `receipts` of a list in its order.

    If some messages of a list are not stored, the status is 207, and their receipts are problems.
    """
    if request.scope["query_string"]:
        refuse_unknown(request, ())
    body = await request.body()
    return _answer(await _outcomes(console_of(request), await caller_of(request), request, body), body)


class _HotRoute:
    """The same without FastAPI's machinery around a function, which takes longer than the rest."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        await (await publish(request))(scope, receive, send)


def hot_route() -> Route:
    """To be put before the router's own."""
    return Route(PATH, _HotRoute(), methods=["POST"])


async def _outcomes(console: ConsoleState, caller: Caller, request: Request, body: bytes) -> list[Outcome]:
    """Raises Problem, ClientError."""
    content_type = request.headers.get("content-type", "")
    if content_type != JSON and content_type.partition(";")[0].strip().lower() != JSON:
        raise Problem(415, "unsupported-media-type", f"a body of {content_type[:100]!r}", f"send {JSON}")
    messages = decoded_messages(body)
    key = request.headers.get("idempotency-key")
    if key is None:
        return await publish_all(caller.connection, messages)
    return await console.once.publish(key, body, caller.connection, messages)


def decoded_messages(body: bytes) -> Sequence[MessageToPublish]:
    """The messages of a body. Raises Problem."""
    try:
        if body.lstrip()[:1] != b"[":
            return (_decode_one(body),)
        messages = _decode_many(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "bad-body", str(error), "see the body of POST /api/v1/messages in /api/docs") from None
    if not 0 < len(messages) <= MOST_MESSAGES:
        raise Problem(400, "bad-body", f"a list of {len(messages)} messages", f"send 1 to {MOST_MESSAGES} at a time")
    return messages


def _answer(outcomes: Sequence[Outcome], body: bytes) -> Response:
    return answer_many(outcomes) if body.lstrip()[:1] == b"[" else answer_one(*outcomes)


def answer_one(outcome: Outcome) -> Response:
    """Raises ClientError."""
    if isinstance(outcome, ClientError):
        raise outcome
    return Response(_encode(outcome), 201, media_type=JSON)


def answer_many(outcomes: Sequence[Outcome | Problem]) -> Response:
    """Receipts, and problems where there is no receipt."""
    receipts = [each if isinstance(each, PublishReceipt) else _problem(each) for each in outcomes]
    is_whole = all(isinstance(each, PublishReceipt) for each in outcomes)
    return Response(_encode({"receipts": receipts}), 201 if is_whole else MULTI_STATUS, media_type=JSON)


def _problem(error: ClientError | Problem) -> msgspec.Raw:
    problem = error if isinstance(error, Problem) else problem_of(error)
    return msgspec.Raw(bytes(problem_answer(problem).body))
