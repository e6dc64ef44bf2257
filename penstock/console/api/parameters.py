"""Query parameters: those that no operation knows are refused, and those that several operations share."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request

from penstock.console.errors import Problem

MOST_NAMED = 5
"""Of the parameters that an answer names as unknown."""


async def known_parameters_alone(request: Request) -> None:
    """A dependency of all routes of the API. Raises Problem."""
    if request.scope["query_string"]:
        refuse_unknown(request, parameters_of(request.scope["route"]))


def refuse_unknown(request: Request, allowed: Collection[str]) -> None:
    """Raises Problem if the query has a parameter with another name: it would be ignored, and its sender misled."""
    unknown = [name for name in request.query_params if name not in allowed]
    if not unknown:
        return
    named = ", ".join(repr(name[:100]) for name in unknown[:MOST_NAMED])
    more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    known = f"it has {', '.join(allowed)}" if allowed else "it has none"
    raise Problem(422, "unknown-parameter", f"this operation has no query parameter {named}{more}: {known}", "see /api/docs")


def parameters_of(route: APIRoute) -> tuple[str, ...]:
    """The names of a route's query parameters, in its order."""
    return tuple(dict.fromkeys(_query_parameters(route.dependant)))


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    for each in dependant.query_params:
        yield each.alias
    for below in dependant.dependencies:
        yield from _query_parameters(below)
