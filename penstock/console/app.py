"""Builds the console's ASGI app: the gate, the API, and the pages if they are there."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.console.access.gate import Gate, HostNames
from penstock.console.access.state import ConsoleState
from penstock.console.api import (
    clients,
    consuming,
    dead_letters,
    events,
    groups,
    health,
    history,
    messages,
    pending,
    publishing,
    receivers,
    reference,
    server,
    session,
    topics,
)
from penstock.console.api.document import operation_id, shape_document
from penstock.console.api.parameters import known_parameters_alone
from penstock.console.api.problems import PREFIX, ProblemDetails, answer_problems
from store.version import VERSION

ABOUT = (
    "Publish messages, read the history of any topic, and look after clients, groups and the server. Users, passwords, "
    "tokens and permissions are those of MQTT clients: Basic or Bearer. Errors are problem details (RFC 9457) with a "
    "`remedy`. A query parameter that an operation does not have is refused (422)."
)
PAGES = "penstock.console.pages"
PARTS = (
    *(consuming, publishing, events, messages, receivers, topics, clients, groups, dead_letters, pending, server),
    *(history, session, health),
)
"""Those first that are asked most often: a request is compared with one route after the other."""
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {"model": ProblemDetails, "description": "A problem (application/problem+json)."}
}


def console_app(state: ConsoleState, listen_host: str) -> ASGIApp:
    """The app with everything around it."""
    app = FastAPI(
        title="Penstock HTTP API",
        version=VERSION,
        description=ABOUT,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
        generate_unique_id_function=operation_id,
    )
    app.state.console = state
    shape_document(app, state.settings.max_page)
    answer_problems(
        app, state.refused, [route for part in PARTS for route in part.router.routes if isinstance(route, Route)]
    )
    api = APIRouter(prefix=PREFIX, dependencies=[Depends(known_parameters_alone)])
    for part in PARTS:
        api.include_router(part.router)
    app.router.routes.append(publishing.hot_route())
    app.include_router(api)
    app.include_router(reference.router)
    if find_spec(PAGES) is not None:
        app.include_router(import_module(f"{PAGES}.routes").router)
    names = HostNames(listen_host, state.settings.hosts)
    return Gate(app, names, state.settings.max_body_bytes, state.settings.body_s, state.refused)
