"""Logins by a cookie, for pages and programs in a browser."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.callers import Caller
from penstock.console.access.logins import COOKIE, Login
from penstock.console.access.state import caller_of, console_of
from penstock.console.store.connection import StoreConnection
from penstock.console.store.connections import UserCredentials
from penstock.console.views.readable import readable_of

router = APIRouter(prefix="/session", tags=["session"])


class LoginRequest(BaseModel):
    user: str = Field("", max_length=1_024, description="Empty where the password is a token.")
    password: str = Field("", max_length=65_536)


class SessionAnswer(BaseModel):
    user: str = Field(description="Whom the store found it to be, by a token too. Empty: nobody by name.")
    csrf_token: str = Field(
        description="To be sent with each change in the header X-CSRF-Token; empty without a cookie."
    )
    readable: list[str] = Field(
        description="Topic filters that the user may subscribe to, each as a whole: # alone, or 100 of its rules."
    )
    prefixes: list[str] = Field(
        description="The whole levels with which the topics of these filters begin; an empty one: any topic may."
    )
    has_more_rules: bool = Field(description="Its rules name more filters than these.")


@router.post("", operation_id="log_in", summary="Log in: sets a cookie", status_code=201)
async def begin_session(request: Request, response: Response, wanted: LoginRequest) -> SessionAnswer:
    """The cookie names a login in the console; the password stays there. Changes need the CSRF token as well."""
    login, connection = await console_of(request).callers.log_in(request, UserCredentials(wanted.user, wanted.password))
    set_cookie(request, response, login)
    return await _answer(connection, login.csrf_token)


@router.get("", operation_id="get_session", summary="Who is logged in")
async def session(caller: Annotated[Caller, Depends(caller_of)]) -> SessionAnswer:
    return await _answer(caller.connection, caller.csrf_token)


async def _answer(connection: StoreConnection, csrf_token: str) -> SessionAnswer:
    found = await readable_of(connection)
    return SessionAnswer(
        user=connection.user,
        csrf_token=csrf_token,
        readable=found.filters,
        prefixes=found.prefixes,
        has_more_rules=not found.are_all,
    )


@router.delete("", operation_id="log_out", summary="Log out", status_code=204, response_class=Response)
async def end_session(request: Request, caller: Annotated[Caller, Depends(caller_of)]) -> Response:
    response = Response(status_code=204)
    if caller.login is not None:
        console_of(request).callers.logins.end(caller.login.name)
    response.delete_cookie(COOKIE)
    return response


def set_cookie(request: Request, response: Response, login: Login) -> None:
    console = console_of(request)
    is_secure = console.is_secure or request.url.scheme == "https"
    lifetime_s = console.settings.session_s
    response.set_cookie(COOKIE, login.name, lifetime_s, httponly=True, samesite="strict", secure=is_secure)
