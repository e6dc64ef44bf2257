"""The overview of a user without the right admin: where its topics begin, and how many there are."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.pages.rendering import PageVisit
from penstock.console.views.readable import readable_of


async def own_overview(visit: PageVisit) -> Response:
    """Nothing of the server, and of topics only what the user may read."""
    connection = visit.caller.connection
    readable = await readable_of(connection)
    known, counts = 0, dict.fromkeys(readable.prefixes, 0)
    if readable.filters:
        index = await visit.console.topics.index(connection)
        known, counts = index.count(), {prefix: index.count(prefix) for prefix in readable.prefixes}
    return visit.show("own_overview.html", readable=readable, known=known, counts=counts)
