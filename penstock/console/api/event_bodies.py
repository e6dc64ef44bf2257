"""What the OpenAPI document says of the bodies and headers of POST /api/v1/events."""

from __future__ import annotations

from typing import Any

from penstock.console.api.cloud_events import MOST_EVENTS

_TEXT = {"type": "string", "minLength": 1}
_EXAMPLE = {
    "specversion": "1.0",
    "id": "A234-1234-1234",
    "source": "/plants/7",
    "type": "com.example.measured",
    "subject": "line/7/temp",
    "time": "2026-01-31T12:00:00Z",
    "data": {"celsius": 21.5},
}
CLOUD_EVENT: dict[str, Any] = {
    "type": "object",
    "description": "A CloudEvent 1.0 in JSON. Further members are its extension attributes.",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"type": "string", "enum": ["1.0"]},
        "id": _TEXT | {"description": "With the source it is what the event is known by."},
        "source": _TEXT | {"description": "Where it comes from; a URI reference."},
        "type": _TEXT | {"description": "What has happened."},
        "subject": _TEXT | {"description": "What it is about: the topic, unless `topic` of the query names one."},
        "time": {"type": "string", "format": "date-time", "description": "When it happened; RFC 3339."},
        "datacontenttype": _TEXT | {"description": "What the data is; application/json unless it says more."},
        "dataschema": _TEXT | {"description": "A URI."},
        "data": {"description": "Any JSON; its bytes are stored as they are. A string, if the data is no JSON."},
        "data_base64": {"type": "string", "contentEncoding": "base64", "description": "Data that is bytes."},
    },
    "additionalProperties": {"type": ["string", "boolean", "integer", "null"]},
    "examples": [_EXAMPLE],
}
_EVENT = {"$ref": "#/components/schemas/CloudEvent"}
BODY_OF_EVENTS: dict[str, Any] = {
    "required": False,
    "content": {
        "application/cloudevents+json": {
            "schema": _EVENT,
            "examples": {"one": {"summary": "One event", "value": _EXAMPLE}},
        },
        "application/cloudevents-batch+json": {
            "schema": {"type": "array", "items": _EVENT, "maxItems": MOST_EVENTS},
            "examples": {"several": {"summary": "Events", "value": [_EXAMPLE, _EXAMPLE | {"id": "2"}]}},
        },
        "application/json": {
            "schema": {
                "description": "The payload of a webhook, or the data of an event whose attributes are headers."
            },
            "examples": {"webhook": {"summary": "A webhook", "value": {"action": "opened"}}},
        },
        "application/octet-stream": {
            "schema": {"type": "string", "format": "binary", "description": "The same with any other content type."}
        },
    },
}


def _header(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": 255}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


WEBHOOK_PARAMETERS = [
    _header("webhook-id", "The id of a webhook: one that comes again is stored once."),
    _header("Idempotency-Key", "The id of a webhook that has no webhook-id."),
    _header("X-GitHub-Delivery", "The id of a webhook that has none of both."),
]
