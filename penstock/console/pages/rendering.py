"""What all pages share: templates that escape everything, who looks, and problems as pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import APIRouter
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.console.access.callers import Caller
from penstock.console.access.state import ConsoleState, caller_of, console_of
from penstock.console.api.problems import problem_of
from penstock.console.errors import Problem
from penstock.console.pages import static_files
from penstock.console.store.connections import OPEN
from penstock.console.store.errors import OperatorError
from penstock.console.views.visible import KEPT_IN_LINES, visible
from penstock.sdk.errors import ClientError

NAVIGATION = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/clients", "Clients"),
    ("/groups", "Groups"),
    ("/delayed", "Delayed"),
    ("/retained", "Retained"),
    ("/publish", "Publish"),
    ("/talkers", "Top talkers"),
    ("/log", "Log"),
)
MOST_FIELDS = 64
"""Of a form."""

router = APIRouter(include_in_schema=False)


def _environment() -> Environment:
    folder = Path(__file__).parent / "templates"
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"seen": visible, "lines": _lines, "size": size, "when": when, "query": query, "count": count}
    made.globals |= {"static": static_files.address, "scripts": static_files.HAS_SCRIPTS, "query": query}
    return made


def _lines(text: str) -> str:
    return visible(text, KEPT_IN_LINES)


def query(path: str, **parameters: object) -> str:
    """The address of a page with these parameters; those that are empty are left out."""
    found = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(found, quote_via=quote)}" if found else path


def when(at: datetime | int | float | None) -> str:
    """A time, or Unix time in ms, in UTC to the millisecond."""
    if at is None:
        return "not known"
    found = at if isinstance(at, datetime) else datetime.fromtimestamp(at / 1000, UTC)
    return found.strftime("%Y-%m-%d %H:%M:%S.") + f"{found.microsecond // 1000:03d} UTC"


def size(number: int | float) -> str:
    """Bytes for people.

    >>> size(999), size(1_500), size(2_340_000)
    ('999 B', '1.5 KB', '2.34 MB')
    """
    for unit, worth in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if number >= worth:
            return f"{number / worth:.3g} {unit}"
    return f"{number:.0f} B"


def count(number: int | float) -> str:
    """A number with its thousands apart."""
    return f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:,.1f}"


TEMPLATES = _environment()


@dataclass(frozen=True, slots=True)
class PageVisit:
    """A request for a page, and who makes it."""

    request: Request
    caller: Caller

    @property
    def console(self) -> ConsoleState:
        return console_of(self.request)

    @property
    def is_part(self) -> bool:
        """Whether a script of the page asks, for a part of it."""
        return "hx-request" in self.request.headers

    def asked(self, name: str, default: str = "", most: int = 65_535) -> str:
        """A parameter of the address. Raises Problem."""
        value = self.request.query_params.get(name, default)
        if len(value) > most:
            raise Problem(400, "bad-parameter", f"{name}: longer than {most} characters", "shorten it")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
        """Raises Problem."""
        text = self.asked(name, str(default), 20)
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise Problem(
                400, "bad-parameter", f"{name}: no number from {least} to {most}", "follow a link of the page"
            )
        return int(text)

    async def form(self) -> dict[str, str]:
        return await form_of(self.request)

    def show(
        self, template: str, *, status: int = 200, headers: dict[str, str] | None = None, **values: Any
    ) -> Response:
        return HTMLResponse(rendered(self.request, self.caller, template, values), status, headers)


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; line ends are as people type them, one character. Raises Problem."""
    body = await request.body()
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise Problem(400, "bad-form", "the form cannot be read", "send it from the page") from None
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def rendered(request: Request, caller: Caller | None, template: str, values: dict[str, Any]) -> str:
    context = {
        "navigation": NAVIGATION if caller is not None else (),
        "here": f"/{request.url.path.split('/')[1]}",
        "csrf_token": caller.csrf_token if caller is not None else "",
        "signed_in": caller is not None and caller.credentials != OPEN,
        "is_open": caller is not None and caller.credentials == OPEN,
        "user": caller.user if caller is not None else "",
    }
    return TEMPLATES.get_template(template).render(context | values)


PageHandler = Callable[[PageVisit], Awaitable[Response]]


def page(path: str, methods: Iterable[str] = ("GET",)) -> Callable[[PageHandler], PageHandler]:
    """Makes a function the answer to a path. Problems become pages, or lines of the page that asked."""

    def registered(handler: PageHandler) -> PageHandler:
        async def answer(request: Request) -> Response:
            caller = None
            try:
                caller = await caller_of(request)
                return await handler(PageVisit(request, caller))
            except Problem as problem:
                return refusal(request, caller, problem)
            except ClientError as error:
                return refusal(request, caller, problem_of(error))
            except OperatorError as error:
                return refusal(request, caller, Problem(503, "store-away", str(error), "ask again in a moment"))

        router.add_route(path, answer, methods=list(methods), include_in_schema=False)
        return handler

    return registered


def refusal(request: Request, caller: Caller | None, problem: Problem) -> Response:
    """A problem as a page; a user who has to log in gets to do that."""
    console_of(request).refused[problem.kind] += 1
    is_part = "hx-request" in request.headers
    if problem.status == 401:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        login = query("/login", next=here if request.method == "GET" and not is_part else "")
        return Response(status_code=204, headers={"HX-Redirect": login}) if is_part else RedirectResponse(login, 303)
    template = "problem_part.html" if is_part else "problem.html"
    headers = {name: value for name, value in problem.headers.items() if name.lower() != "www-authenticate"}
    return HTMLResponse(rendered(request, caller, template, {"problem": problem}), problem.status, headers)
