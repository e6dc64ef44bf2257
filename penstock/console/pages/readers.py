"""Who publishes to a topic, who subscribes, and which groups read it."""

from __future__ import annotations

from collections import Counter

from starlette.responses import Response

from penstock.console.access.admin import operator_for
from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.pages.topic import topic_of
from penstock.console.views.history import HistoryPages, HistorySpan
from penstock.console.views.sizes import ANSWER_BYTES
from penstock.sdk.message import Message
from store.wire.operator_messages import TopicReader, TopicReaders, TopicReadersFound

LOOKED_AT = 1_000
MOST_SESSIONS = 500


@page("/topic/readers")
async def readers_page(visit: PageVisit) -> Response:
    """The publishers of its newest messages are known to each reader; sessions and groups to admins only."""
    name, connection = topic_of(visit), visit.caller.connection
    newest = (await HistoryPages(connection).backward(HistorySpan(name), LOOKED_AT)).messages
    publishers = Counter(Message(record, None, connection.place).client_id for record, _ in newest)
    sessions: list[TopicReader] = []
    groups: list[tuple[str, str]] = []
    unknown, are_more = "", False
    try:
        operator = await operator_for(visit.console, visit.caller)
        after: int | None = 0
        left_bytes = ANSWER_BYTES
        while after is not None and len(sessions) < MOST_SESSIONS and left_bytes > 0:
            found = await operator.ask(TopicReaders(connection.names.topic(name), after), TopicReadersFound)
            left_bytes -= sum(len(each.client_id) + len(each.topic_filter) for each in found.sessions)
            sessions += found.sessions
            groups += found.groups
            after = found.next
        are_more = after is not None
    except Problem as problem:
        unknown = f"{problem.detail}; {problem.remedy}"
    return visit.show(
        "readers.html",
        topic=name,
        view="readers",
        publishers=publishers.most_common(100),
        looked_at=len(newest),
        sessions=sessions[:MOST_SESSIONS],
        are_more=are_more or len(sessions) > MOST_SESSIONS,
        groups=groups,
        unknown=unknown,
        names=connection.names,
    )
