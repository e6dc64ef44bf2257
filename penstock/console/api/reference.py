"""/api/openapi.json, and /api/docs: the same as a page that needs no script and nothing of another site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

HERE = Path(__file__).parent
METHODS = ("get", "post", "put", "patch", "delete")

router = APIRouter(include_in_schema=False)
_environment = Environment(
    loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


class Field(NamedTuple):
    name: str
    kind: str
    doc: str
    is_required: bool


class Operation(NamedTuple):
    """A method of a path, as the page shows it."""

    method: str
    path: str
    summary: str
    doc: str
    parameters: list[Field]
    body: list[Field]
    answer: list[Field]


@router.get("/api/docs")
async def docs(request: Request) -> Response:
    app: FastAPI = request.app
    schema = app.openapi()
    template = _environment.get_template("reference.html")
    return HTMLResponse(template.render(info=schema["info"], operations=list(operations(schema))))


@router.get("/api/docs.css")
async def style() -> Response:
    return FileResponse(HERE / "reference.css", media_type="text/css", headers={"cache-control": "no-cache"})


def operations(schema: dict[str, Any]) -> Iterator[Operation]:
    """All operations of an OpenAPI document, in its order."""
    for path, methods in schema["paths"].items():
        for method in METHODS:
            found = methods.get(method)
            if found is not None:
                parameters = [
                    Field(each["name"], kind_of(each["schema"]), _doc_of(each), each.get("required", False))
                    for each in found.get("parameters", ())
                ]
                yield Operation(
                    method.upper(),
                    path,
                    found.get("summary", ""),
                    found.get("description", ""),
                    parameters,
                    list(_fields(schema, found.get("requestBody", {}))),
                    list(_fields(schema, _success(found))),
                )


def _success(operation: dict[str, Any]) -> dict[str, Any]:
    return next((answer for status, answer in operation["responses"].items() if status.startswith("2")), {})


def _fields(schema: dict[str, Any], part: dict[str, Any]) -> Iterator[Field]:
    """The members of the JSON object that a request or an answer has; the first one where there are several."""
    content = part.get("content", {})
    found: dict[str, Any] = next((each for name, each in content.items() if name.endswith(("/json", "+json"))), {})
    shape = _resolved(schema, found.get("schema", {}))
    required = shape.get("required", ())
    for name, member in shape.get("properties", {}).items():
        yield Field(name, kind_of(member), _doc_of(member), name in required)


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    for name in ("anyOf", "oneOf"):
        if part.get(name):
            return _resolved(schema, part[name][0])
    if "$ref" in part:
        found: dict[str, Any] = schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
        return found
    return part


def _doc_of(part: dict[str, Any]) -> str:
    return str(part.get("description") or part.get("schema", {}).get("description") or "")


def kind_of(schema: dict[str, Any]) -> str:
    """A few words for a type.

    >>> kind_of({"anyOf": [{"type": "integer"}, {"type": "null"}]}), kind_of({"enum": ["asc", "desc"]})
    ('integer or null', 'asc | desc')
    >>> kind_of({"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100})
    'integer from 1 to 1000 (default: 100)'
    """
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    several = schema.get("anyOf") or schema.get("oneOf")
    if several:
        return " or ".join(kind_of(each) for each in several)
    kind = str(schema.get("type", "any"))
    if "minimum" in schema and "maximum" in schema:
        kind += f" from {schema['minimum']} to {schema['maximum']}"
    if schema.get("default", "") not in ("", None, False):
        kind += f" (default: {schema['default']})"
    items = schema.get("items")
    if kind == "array":
        return f"list of {kind_of(items)}" if isinstance(items, dict) else "list"
    return kind
