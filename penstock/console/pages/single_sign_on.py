"""Logging in at a provider of OpenID Connect: the way there, and the way back."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gateway.auth.sources import source_of
from penstock.console.access.state import ConsoleState, console_of
from penstock.console.api.session import set_cookie
from penstock.console.errors import Problem
from penstock.console.pages.rendering import rendered, router
from penstock.console.pages.sign_in import login_page_of, next_page
from penstock.console.store.connections import UserCredentials
from penstock.console.views.visible import visible

if TYPE_CHECKING:
    from penstock.console.access.sign_on import SignOn

log = logging.getLogger("penstock.console")

PATH = "/login/oidc"
BACK = PATH + "/callback"
COOKIE = "penstock_sign_on"
COOKIE_S = 600
"""As long as a login at the provider may take."""


async def begin(request: Request) -> Response:
    try:
        sign_on = _sign_on(console_of(request))
        address, cookie = await sign_on.begin(str(request.base_url).rstrip("/") + BACK, next_page(request))
    except Problem as problem:
        return _refused(request, problem)
    answer = RedirectResponse(address, 303)
    # Lax: the provider's site sends the browser back, by a link.
    is_secure = console_of(request).is_secure or request.url.scheme == "https"
    answer.set_cookie(COOKIE, cookie, COOKIE_S, path=PATH, httponly=True, samesite="lax", secure=is_secure)
    return answer


async def finish(request: Request) -> Response:
    """A page that leads on by itself: a browser keeps the login's cookie, which is strict, from a redirect that another
    site began.
    """
    console = console_of(request)
    try:
        sign_on = _sign_on(console)
        source = source_of(request.client.host) if request.client is not None else ""
        cookie, answer = request.cookies.get(COOKIE, ""), dict(request.query_params)
        token, claims, following = await sign_on.finish(cookie, answer, source)
        lives_s = claims["exp"] - time.time()
        login, connection = await console.callers.log_in(request, UserCredentials("", token), lives_s)
        try:
            sign_on.check_user(connection.user, claims)
        except Problem:
            console.callers.logins.end(login.name)
            raise
    except Problem as problem:
        return _refused(request, problem)
    page = HTMLResponse(rendered(request, None, "signed_on.html", {"next": following}))
    page.delete_cookie(COOKIE, path=PATH)
    set_cookie(request, page, login)
    return page


def _sign_on(console: ConsoleState) -> SignOn:
    if console.sign_on is None:
        raise Problem(404, "no-sign-on", "this console has no provider of logins", "set console.oidc_issuer")
    return console.sign_on


def _refused(request: Request, problem: Problem) -> Response:
    console_of(request).refused[problem.kind] += 1
    address = request.client.host if request.client is not None else "?"
    log.warning("a login by OpenID Connect from %s failed: %s", address, visible(problem.detail))
    page = login_page_of(request, problem)
    page.delete_cookie(COOKIE, path=PATH)
    return page


router.add_route(PATH, begin, methods=["GET"], include_in_schema=False)
router.add_route(BACK, finish, methods=["GET"], include_in_schema=False)
