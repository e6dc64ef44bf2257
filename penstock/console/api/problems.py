"""Errors as problem details (RFC 9457): each says what is wrong and the remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from math import ceil

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access.problem_answer import problem_answer
from penstock.console.errors import Problem
from penstock.console.store.publish_rates import PublishesTooFast
from penstock.sdk.errors import (
    BadMessage,
    BadMessageId,
    BadOption,
    BadPosition,
    ClientError,
    NotFound,
    NotPermitted,
    Overloaded,
    StoreRefused,
    TimedOut,
)
from store.wire.messages import FailureCode

PREFIX = "/api/v1"
PARAMETER = re.compile("{[^}]+}")
AGAIN = {"Retry-After": "1"}
REMEDY_OF_STATUS = {
    404: "see /api/docs for the paths of the API",
    405: "see /api/docs for the methods of this path",
}
STATUS_OF_CODE = {
    FailureCode.STORE_FULL: (507, "the store refuses what is published until its disk has room"),
    FailureCode.RECORD_TOO_LARGE: (413, "publish a smaller message"),
    FailureCode.BAD_REQUEST: (400, "see the parameters of this path in /api/docs"),
    FailureCode.NO_SUCH_POSITION: (422, "give a place as the parameters of this path in /api/docs have it"),
    FailureCode.NOT_ALLOWED: (403, "ask with a user who may do that"),
}


class ProblemDetails(BaseModel):
    """The body of every answer with a status of 400 or more: `application/problem+json` (RFC 9457)."""

    type: str = Field(description="A URN that ends with the kind of the problem, for programs.")
    title: str
    status: int
    detail: str = Field(description="What is wrong with this request.")
    remedy: str = Field(description="What helps.")


def problem_of(error: Exception) -> Problem:
    """What an error of the SDK means for the request that met it."""
    text = str(error)
    match error:
        case NotPermitted():
            return Problem(403, "not-permitted", text, "ask with a user whose permissions allow it")
        case BadMessageId():
            return Problem(400, "bad-message-id", text, "give an id as a receipt or a message has it")
        case NotFound():
            return Problem(404, "no-such-message", text, "it is not kept any more, or it never was")
        case BadMessage():
            return Problem(422, "bad-message", text, "see POST /api/v1/messages in /api/docs")
        case BadPosition() | BadOption():
            return Problem(400, "bad-parameter", text, "see the parameters of this path in /api/docs")
        case PublishesTooFast(wait_s=wait_s):
            again = {"Retry-After": str(ceil(wait_s))}
            return Problem(
                429, "publishes-too-fast", text, f"publish more slowly, and this again in {wait_s:.1f} s", again
            )
        case Overloaded():
            return Problem(503, "overloaded", text, "publish more slowly", AGAIN)
        case StoreRefused(code=code):
            status, remedy = STATUS_OF_CODE.get(FailureCode(code), (503, "ask again in a moment"))
            return Problem(status, code.replace("_", "-"), text, remedy, AGAIN if status == 503 else {})
        case TimedOut():
            return Problem(504, "store-silent", text, "ask again; a message may be stored or not", AGAIN)
    return Problem(503, "store-away", text, "ask again in a moment", AGAIN)


def bad_parameter(name: str, detail: str, remedy: str = "see the parameters of this path in /api/docs") -> Problem:
    return Problem(400, "bad-parameter", f"{name}: {detail}", remedy)


def allowed_methods(routes: Iterable[Route], path: str) -> str:
    """All methods of a path, for the header Allow: those of the routes whose common path is most like it.

    Starlette names those of one route alone. Empty: no route has this path.
    """
    matching = [route for route in routes if route.path_regex.match(path)]
    if not matching:
        return ""
    nearest = max((route.path for route in matching), key=lambda each: len(PARAMETER.sub("", each)))
    return ", ".join(sorted({name for route in matching if route.path == nearest for name in route.methods or ()}))


def answer_problems(app: FastAPI, refused: Counter[str], routes: Iterable[Route]) -> None:
    """Have the app answer errors as problem details; `refused` counts them by kind. `routes`: of the API."""

    def answered(problem: Problem) -> Response:
        refused[problem.kind] += 1
        return problem_answer(problem)

    async def of_problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return answered(error)

    async def of_client(_: Request, error: Exception) -> Response:
        return answered(problem_of(error))

    async def of_validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return answered(bad_parameter(where, str(first["msg"])))

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        kind = status.phrase.lower().replace(" ", "-")
        remedy = REMEDY_OF_STATUS.get(status, "see /api/docs")
        headers = dict(error.headers or {})
        allowed = allowed_methods(routes, request.url.path.removeprefix(PREFIX))
        if status == 405 and allowed:
            headers["Allow"] = allowed
        return answered(Problem(status, kind, str(error.detail), remedy, headers))

    async def of_fault(_: Request, error: Exception) -> Response:
        return answered(Problem(500, "fault", "the console failed", f"report it with the log: {type(error).__name__}"))

    app.exception_handler(Problem)(of_problem)
    app.exception_handler(ClientError)(of_client)
    app.exception_handler(RequestValidationError)(of_validation)
    app.exception_handler(HTTPException)(of_http)
    app.exception_handler(Exception)(of_fault)
