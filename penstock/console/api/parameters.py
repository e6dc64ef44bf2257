"""Query parameters: those that no operation knows are refused, and those that several operations share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

from fastapi import Depends, Query
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request

from penstock.console.access.state import console_of
from penstock.console.api.problems import bad_parameter
from penstock.console.errors import Problem

DEFAULT_ROWS = 100
MOST_NAMED = 5
"""Of what is unknown or not unique, in an answer."""


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
    raise Problem(
        422, "unknown-parameter", f"this operation has no query parameter {named}{more}: {known}", "see /api/docs"
    )


def parameters_of(route: APIRoute) -> tuple[str, ...]:
    """The names of a route's query parameters, in its order."""
    return tuple(dict.fromkeys(_query_parameters(route.dependant)))


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    for each in dependant.query_params:
        yield each.alias
    for below in dependant.dependencies:
        yield from _query_parameters(below)


async def page_limit(
    request: Request,
    limit: Annotated[
        int | None, Query(ge=1, description="Rows of a page. It may have fewer, and still a next one.")
    ] = None,
) -> int:
    """A dependency. Raises Problem. The document says the bounds of the console that answers."""
    return checked_limit(request, limit)


def checked_limit(request: Request, limit: int | None) -> int:
    """Raises Problem."""
    most = console_of(request).settings.max_page
    if limit is None:
        return default_rows(most)
    if limit > most:
        raise bad_parameter("limit", f"{limit} is more than {most}", "ask for several pages, or raise console.max_page")
    return limit


def default_rows(most: int) -> int:
    """Of a page, where one has `most` rows at most."""
    return min(DEFAULT_ROWS, most)


PageLimit = Annotated[int, Depends(page_limit)]
After = Annotated[str | None, Query(max_length=1_024, description="`next` of the page before.")]
