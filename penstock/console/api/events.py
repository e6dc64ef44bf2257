"""POST /api/v1/events: CloudEvents and webhooks become messages. What has an identity is stored once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.callers import Caller
from penstock.console.access.state import caller_of, console_of
from penstock.console.api.cloud_events import (
    IN_HEADERS,
    event_in_headers,
    event_in_json,
    events_in_batch,
    message_of,
    no_topic,
    topic_fault,
)
from penstock.console.api.event_bodies import BODY_OF_EVENTS, WEBHOOK_PARAMETERS
from penstock.console.api.problems import bad_parameter
from penstock.console.api.publishing import (
    MULTI_STATUS,
    MixedReceiptsModel,
    ReceiptModel,
    ReceiptsModel,
    answer_many,
    answer_one,
)
from penstock.console.errors import Problem
from penstock.console.store.once import MOST_KEY_CHARACTERS
from penstock.console.store.publishing import publish_all
from penstock.console.store.stored_once import IdentifiedMessage, StoredOnce, key_of
from penstock.sdk.errors import BadMessage

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
ANY_FORMAT = "application/cloudevents"
WEBHOOK_ID = "webhook-id"
ID_HEADERS = (WEBHOOK_ID, "idempotency-key", "x-github-delivery")
"""Where a webhook has its id; the first that there is."""
PASSED_ON = ("webhook-timestamp", "webhook-signature", "x-github-event", "x-hub-signature-256")
"""Headers of a webhook that subscribers get: what it is, and what they need to verify it."""

router = APIRouter(tags=["messages"])
Topic = Annotated[
    str | None,
    Query(description="Where the messages go. Without it, to the topic that the subject of each CloudEvent names."),
]


@router.post(
    "/events",
    operation_id="publish_events",
    summary="Publish a CloudEvent, a batch of them, or a webhook",
    response_model=ReceiptModel | ReceiptsModel,
    status_code=201,
    responses={MULTI_STATUS: {"model": MixedReceiptsModel, "description": "Some of a batch are not stored."}},
    openapi_extra={"requestBody": BODY_OF_EVENTS, "parameters": WEBHOOK_PARAMETERS},
)
async def publish_events(
    request: Request, caller: Annotated[Caller, Depends(caller_of)], topic: Topic = None
) -> Response:
    """An event is stored once for a day by its `source` and `id` in a topic: one that comes again gets the receipt of
    the first. A webhook is stored once by its user, topic and id.

    The answer is the receipt, or `receipts` of a batch in its order. If some of a batch are not stored, the status is
    207, and their receipts are problems.
    """
    fault = topic_fault(topic) if topic is not None else ""
    if fault:
        raise BadMessage(fault)
    body, once = await request.body(), console_of(request).events
    content_type = _content_type(request)
    essence = _essence(content_type)
    if essence == BATCH:
        return await _publish_batch(events_in_batch(_checked(body), topic), caller, once)
    if essence == STRUCTURED:
        event = event_in_json(_checked(body), topic)
    elif any(name in IN_HEADERS for name, _ in request.headers.raw):
        event = event_in_headers(request.headers.raw, body, content_type, topic)
    else:
        return await _publish_webhook(request, body, content_type, topic, caller)
    return answer_one(*await once.publish(caller.connection, [event]))


@router.options(
    "/events", operation_id="allow_events", summary="Whether a sender of CloudEvents may send them", status_code=204
)
async def allow_events(
    request: Request, caller: Annotated[Caller, Depends(caller_of)], topic: Topic = None
) -> Response:
    """The handshake of CloudEvents' web hooks: the sender named by `WebHook-Request-Origin` may, as the user of this
    request.
    """
    headers = {"Allow": "OPTIONS, POST"}
    origin = request.headers.get("webhook-request-origin")
    if origin is not None:
        headers |= {"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*"}
    return Response(status_code=204, headers=headers)


async def _publish_batch(batch: Sequence[IdentifiedMessage | Problem], caller: Caller, once: StoredOnce) -> Response:
    """Raises ClientError if nothing was sent."""
    good = [each for each in batch if isinstance(each, IdentifiedMessage)]
    outcomes = iter(await once.publish(caller.connection, good))
    return answer_many([each if isinstance(each, Problem) else next(outcomes) for each in batch])


async def _publish_webhook(
    request: Request, body: bytes, content_type: str | None, topic: str | None, caller: Caller
) -> Response:
    """Raises Problem, ClientError."""
    if topic is None:
        raise no_topic("a webhook without a topic")
    headers = request.headers
    properties = [(name, headers[name]) for name in PASSED_ON if name in headers]
    given = _webhook_id(request)
    if given is None:
        message = message_of(topic, body, properties, content_type, None)
        return answer_one(*await publish_all(caller.connection, [message]))
    mark = (WEBHOOK_ID, given)
    key = key_of("webhook", *caller.connection.account, given)
    message = message_of(topic, body, [mark, *properties], content_type, key)
    identified = IdentifiedMessage(message, (mark,))
    return answer_one(*await console_of(request).events.publish(caller.connection, [identified]))


def _webhook_id(request: Request) -> str | None:
    """None: it has none. Raises Problem."""
    for name in ID_HEADERS:
        found = request.headers.get(name)
        if found is not None:
            if not 0 < len(found) <= MOST_KEY_CHARACTERS or not found.isprintable():
                raise bad_parameter(name, f"it has 1 to {MOST_KEY_CHARACTERS} printable characters")
            return found
    return None


def _content_type(request: Request) -> str | None:
    """None: it says none. Raises Problem."""
    given = request.headers.get("content-type")
    if given is not None and not given.isprintable():
        raise Problem(400, "bad-event", "a Content-Type with control characters", "send one without them")
    return given or None


def _essence(content_type: str | None) -> str:
    """The media type without parameters, in lower case. Raises Problem for one of events that is not known."""
    essence, _, parameters = (content_type or "").lower().partition(";")
    essence = essence.strip()
    if not essence.startswith(ANY_FORMAT):
        return essence
    charset = parameters.partition("charset=")[2].partition(";")[0].strip(' "')
    if essence not in (STRUCTURED, BATCH) or charset not in ("", "utf-8", "us-ascii"):
        raise Problem(
            415,
            "unsupported-media-type",
            f"events of {(content_type or '')[:100]!r}",
            f"send {STRUCTURED} or {BATCH} in UTF-8, or binary mode",
        )
    return essence


def _checked(body: bytes) -> bytes:
    """A body that is UTF-8, also where it is not decoded. Raises Problem."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Problem(400, "bad-event", f"no event in JSON: {error}", "send UTF-8") from None
    return body
