"""One message: what it is, and its payload as JSON, as text or as bytes."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.views import payloads
from penstock.console.views.payloads import PayloadForm
from penstock.console.views.sizes import bounded_payload, in_worker
from penstock.sdk.errors import Unreadable
from penstock.sdk.message import Message

MOST_ID = 256


@page("/message")
async def show_message(visit: PageVisit) -> Response:
    message = await visit.caller.connection.at(visit.asked("id", most=MOST_ID))
    template = "message_part.html" if visit.is_part else "message.html"
    values = await in_worker(payload_values, message, visit.asked("as", most=8))
    return visit.show(template, message=message, **values)


def payload_values(message: Message, wanted: str) -> dict[str, Any]:
    """What the template shows of a payload in the form that is `wanted`; empty: in the one that suits it."""
    try:
        payload = bounded_payload(message)
    except Unreadable as error:
        raise Problem(413, "unreadable", str(error), "read it with the SDK") from None
    if wanted not in ("", *PayloadForm):
        raise Problem(400, "bad-parameter", "as: no form of a payload", "use json, text or hex")
    form = PayloadForm(wanted) if wanted else payloads.form_of(payload)
    tree = payloads.json_tree(payload) if form == PayloadForm.JSON else None
    return {
        "payload": payload,
        "form": form,
        "forms": [each.value for each in PayloadForm],
        "tree": tree,
        "text": payloads.whole_text(payload) if form == PayloadForm.TEXT else "",
        "hex": payloads.hex_lines(payload) if form == PayloadForm.HEX else [],
        "most_hex_bytes": payloads.MOST_HEX_BYTES,
        "most_text_characters": payloads.MOST_TEXT_CHARACTERS,
    }
