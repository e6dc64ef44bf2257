"""Clients and their sessions: a list, the details of one, and the ends of both. For admins."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.access.admin import by, operator_for
from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from store.wire.operator_messages import (
    ClientShown,
    ClientsListed,
    DisconnectClient,
    EndSession,
    ListClients,
    OperatorDone,
    ShowClient,
)

REASON = "an operator ended it at the console"


@page("/clients")
async def clients_page(visit: PageVisit) -> Response:
    """`prefix` of the client_ids; `online`: only those with a connection; `after`: go on from there."""
    operator = await operator_for(visit.console, visit.caller)
    prefix, online = visit.asked("prefix"), visit.asked("online", most=3) == "yes"
    found = await operator.ask(ListClients(prefix, online, visit.number("after", 0)), ClientsListed)
    clients = sorted(found.clients, key=lambda client: (not client.online, client.client_id))
    template = "clients_part.html" if visit.is_part else "clients.html"
    return visit.show(template, clients=clients, after=found.next, prefix=prefix, online=online)


@page("/client")
async def client_page(visit: PageVisit) -> Response:
    operator = await operator_for(visit.console, visit.caller)
    found = await operator.ask(ShowClient(visit.asked("id")), ClientShown)
    if found.client is None:
        raise Problem(404, "no-such-client", "no client of this name has a session", "choose one on the page Clients")
    return visit.show("client.html", client=found.client, shown=found)


@page("/client/disconnect", ["POST"])
async def disconnect(visit: PageVisit) -> Response:
    operator, client_id = await operator_for(visit.console, visit.caller), (await visit.form()).get("id", "")
    done = await operator.ask(DisconnectClient(client_id, REASON, by(visit.request, visit.caller)), OperatorDone)
    return _done(visit, done, client_id, "Disconnected", "The client has no connection")


@page("/client/end", ["POST"])
async def end_session(visit: PageVisit) -> Response:
    operator, client_id = await operator_for(visit.console, visit.caller), (await visit.form()).get("id", "")
    done = await operator.ask(EndSession(client_id, by(visit.request, visit.caller)), OperatorDone)
    return _done(visit, done, client_id, "Session ended", "The client has no session")


def _done(visit: PageVisit, done: OperatorDone, client_id: str, what: str, else_what: str) -> Response:
    return visit.show("client_done.html", what=what if done.found else else_what, name=client_id)
