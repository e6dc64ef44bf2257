"""The OpenAPI document as generators of clients take it: named schemas, plain operation ids, and who may ask."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute

from penstock.console.access.logins import COOKIE
from penstock.console.access.problem_answer import MEDIA_TYPE
from penstock.console.api.event_bodies import CLOUD_EVENT
from penstock.console.api.links import add_links
from penstock.console.api.parameters import default_rows
from penstock.console.store.publishing import MOST_MESSAGES, MessageToPublish

JSON, NDJSON = "application/json", "application/x-ndjson"
SCHEMAS = "#/components/schemas/"
SECURITY_SCHEMES = {
    "basic": {"type": "http", "scheme": "basic", "description": "User name and password of an MQTT client."},
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token, as MQTT clients have it for a password."},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "Of log_in; changes need the header X-CSRF-Token as well.",
    },
}
ANY_OF_THEM: list[dict[str, list[str]]] = [{name: []} for name in SECURITY_SCHEMES]
NO_USER: list[dict[str, list[str]]] = [{}]
"""A store without authentication asks for nobody."""
FOR_EVERYBODY = frozenset({"get_health", "log_in"})
PAIR = {"type": "array", "items": {"type": "string", "maxLength": 65_535}, "minItems": 2, "maxItems": 2}
EXAMPLE = {"topic": "line/7/temp", "payload": "21.5", "headers": {"unit": "C"}}
BODY_TO_PUBLISH = {
    "required": True,
    "content": {
        JSON: {
            "schema": {
                "anyOf": [
                    {"$ref": f"{SCHEMAS}MessageToPublish"},
                    {
                        "type": "array",
                        "items": {"$ref": f"{SCHEMAS}MessageToPublish"},
                        "minItems": 1,
                        "maxItems": MOST_MESSAGES,
                    },
                ]
            },
            "examples": {
                "one": {"summary": "One message", "value": EXAMPLE},
                "several": {"summary": "A list", "value": [EXAMPLE, {"topic": "line/8/temp", "json": {"celsius": 19}}]},
            },
        }
    },
}


def operation_id(route: APIRoute) -> str:
    """Of a route that names none: the name of its function."""
    return route.name


def shape_document(app: FastAPI, most_rows: int) -> None:
    """Have the app's document say what FastAPI does not know of, and nothing of FastAPI's own.

    `most_rows`: of a page.
    """
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(made())
            _state_limits(made(), most_rows)
        return made()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> None:
    components = document["components"]
    components["schemas"]["MessageToPublish"] = _message_to_publish()
    components["schemas"]["CloudEvent"] = CLOUD_EVENT
    components["schemas"] = dict(sorted(components["schemas"].items()))
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    bodies = [each["requestBody"] for each in operations if "requestBody" in each]
    for name in set(re.findall(f'"{SCHEMAS}(\\w+)"', json.dumps(bodies))):
        for member in components["schemas"][name].get("properties", {}).values():
            member.pop("default", None)  # generators for TypeScript want what has one
    components["securitySchemes"] = SECURITY_SCHEMES
    for methods in document["paths"].values():
        for operation in methods.values():
            is_open = operation["operationId"] in FOR_EVERYBODY
            operation["security"] = NO_USER if is_open else ANY_OF_THEM + NO_USER
            add_links(operation)
            answers = operation["responses"]
            answers.pop("422", None)
            problem = answers["default"]["content"]
            if JSON in problem:
                problem[MEDIA_TYPE] = problem.pop(JSON)


def _state_limits(document: dict[str, Any], most_rows: int) -> None:
    """The bounds of each `limit`, as this console's settings have them. That of a stream has no upper one."""
    default = default_rows(most_rows)
    for methods in document["paths"].values():
        for operation in methods.values():
            for each in operation.get("parameters", ()):
                if each["name"] != "limit":
                    continue
                each["schema"] = {"type": "integer", "minimum": 1}
                if NDJSON in operation["responses"]["200"]["content"]:
                    each["description"] += f" Of a page {default} at first, {most_rows} at most."
                else:
                    each["schema"] |= {"maximum": most_rows, "default": default}


def _message_to_publish() -> dict[str, Any]:
    (_,), components = msgspec.json.schema_components([MessageToPublish], ref_template=SCHEMAS + "{name}")
    found: dict[str, Any] = components["MessageToPublish"]
    for kind in found["properties"]["headers"]["anyOf"]:
        if kind.get("type") == "array":
            kind["items"] = PAIR  # `prefixItems` with `"items": false` says the same, and generators refuse it
    return found | {"examples": [EXAMPLE]}
