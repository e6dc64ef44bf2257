"""What the routes of API and pages share: `console_of(request)` gives it, `caller_of(request)` who asks."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from starlette.requests import HTTPConnection, Request

from penstock.console.access.callers import Caller, Callers

if TYPE_CHECKING:
    from penstock.config.console_settings import ConsoleSettings
    from penstock.console.access.sign_on import SignOn
    from penstock.console.observe.overview import Overview
    from penstock.console.store.admin import AdminRequests
    from penstock.console.store.connections import UserConnections
    from penstock.console.store.once import PublishedOnce
    from penstock.console.store.stored_once import StoredOnce
    from penstock.console.views.topics import TopicViews


@dataclass(frozen=True, slots=True)
class ConsoleState:
    settings: ConsoleSettings
    connections: UserConnections
    callers: Callers
    once: PublishedOnce
    events: StoredOnce
    topics: TopicViews
    admin: AdminRequests
    overview: Overview
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were answered with a problem, by its kind."""
    sockets: Counter[str] = field(default_factory=Counter)
    """Connections of browsers and programs that are open (`open`), and that there were (`total`)."""
    streams: Counter[str] = field(default_factory=Counter)
    """Streams that are open (`open`), and that there were (`total`)."""
    streams_of: Counter[str] = field(default_factory=Counter)
    """Those that are open, by user."""
    pops: Counter[str] = field(default_factory=Counter)
    """Requests for messages of groups that are under way (`open`), and that there were (`total`)."""
    pops_of: Counter[str] = field(default_factory=Counter)
    """Those under way, by user."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the console ends: streams end."""
    sign_on: SignOn | None = None
    """Logins by a provider; None: there is none."""
    is_secure: bool = False
    """Whether browsers come by HTTPS, so that cookies are sent by it alone."""


def console_of(request: HTTPConnection) -> ConsoleState:
    return cast(ConsoleState, request.app.state.console)


async def caller_of(request: Request) -> Caller:
    """Who asks; a dependency of routes. Raises Problem."""
    return await console_of(request).callers.of(request)
