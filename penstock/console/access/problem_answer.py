"""A Problem as an answer: problem details of RFC 9457, with the remedy as a further member."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from penstock.console.errors import Problem

MEDIA_TYPE = "application/problem+json"
URN = "urn:penstock:problem:"


def problem_answer(problem: Problem) -> Response:
    body = {
        "type": URN + problem.kind,
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "remedy": problem.remedy,
        **problem.more,
    }
    return Response(msgspec.json.encode(body), problem.status, dict(problem.headers), MEDIA_TYPE)
