"""Logging in and out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.console.access.logins import COOKIE
from penstock.console.access.state import console_of
from penstock.console.api.session import set_cookie
from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, form_of, page, rendered, router
from penstock.console.store.connections import UserCredentials

START = "/"


def next_page(request: Request) -> str:
    """Where to go after the login: a path of this console and nothing else."""
    wanted = request.query_params.get("next", START)
    leads_away = wanted.startswith(("//", "/log")) or "\\" in wanted
    return wanted if wanted.startswith("/") and wanted.isprintable() and not leads_away else START


async def login_page(request: Request) -> Response:
    return login_page_of(request, None)


def login_page_of(request: Request, problem: Problem | None) -> Response:
    sign_on = console_of(request).sign_on
    provider = sign_on.name if sign_on is not None else ""
    values = {"next": next_page(request), "problem": problem, "provider": provider}
    return HTMLResponse(rendered(request, None, "login.html", values), problem.status if problem else 200)


async def log_in(request: Request) -> Response:
    console = console_of(request)
    try:
        form = await form_of(request)
        credentials = UserCredentials(form.get("user", ""), form.get("password", ""))
        login, _ = await console.callers.log_in(request, credentials)
    except Problem as problem:
        console.refused[problem.kind] += 1
        return login_page_of(request, problem)
    answer = RedirectResponse(next_page(request), 303)
    set_cookie(request, answer, login)
    return answer


router.add_route("/login", login_page, methods=["GET"], include_in_schema=False)
router.add_route("/login", log_in, methods=["POST"], include_in_schema=False)


@page("/logout", ["POST"])
async def log_out(visit: PageVisit) -> Response:
    if visit.caller.login is not None:
        visit.console.callers.logins.end(visit.caller.login.name)
    answer = Response(status_code=204, headers={"HX-Redirect": "/login"})
    answer.delete_cookie(COOKIE)
    return answer
