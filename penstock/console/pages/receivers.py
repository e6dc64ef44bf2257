"""Who has received a message, on the message's page."""

from __future__ import annotations

from collections import Counter

from starlette.responses import Response

from penstock.console.errors import Problem
from penstock.console.pages.message import MOST_ID
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.store.receivers import receivers_of
from penstock.console.views.sizes import ANSWER_BYTES
from store.wire.operator_messages import GroupReceiver, SessionReceiver

MOST_SESSIONS = 500
MOST_PAGES = 20
"""Requests to the store for one page: 40,000 sessions."""
MEANINGS = {
    "received": "has it",
    "in_flight": "handed out, not acknowledged",
    "under_way": "connected; not acknowledged so far",
    "waiting": "waits for it",
    "retry": "comes again",
    "dead_letter": "given up: a dead letter",
    "later": "began after it",
    "filtered": "published it itself (No Local), or wants other tags",
    "unknown": "no position says",
}


@page("/message/receivers")
async def message_receivers(visit: PageVisit) -> Response:
    """What only admins see; others are told so in its place."""
    message_id = visit.asked("id", most=MOST_ID)
    sessions: list[SessionReceiver] = []
    groups: list[GroupReceiver] = []
    unknown, after, left_bytes = "", 0, ANSWER_BYTES
    goes_on: int | None = 0
    try:
        for _ in range(MOST_PAGES):
            found = await receivers_of(visit.console.admin, visit.caller.connection, message_id, after)
            left_bytes -= sum(len(each.client_id) + len(each.topic_filter) for each in found.sessions)
            sessions += found.sessions
            groups += found.groups
            goes_on = found.next
            if goes_on is None or len(sessions) >= MOST_SESSIONS or left_bytes <= 0:
                break
            after = goes_on
    except Problem as problem:
        unknown = f"{problem.detail}; {problem.remedy}"
    return visit.show(
        "receivers_part.html" if visit.is_part else "receivers.html",
        message_id=message_id,
        sessions=sorted(sessions[:MOST_SESSIONS], key=lambda each: each.client_id),
        counts=Counter(each.state for each in sessions).most_common(),
        groups=sorted(groups, key=lambda each: (each.group, each.topic_filter)),
        are_more=goes_on is not None or len(sessions) > MOST_SESSIONS,
        meanings=MEANINGS,
        unknown=unknown,
        names=visit.caller.connection.names,
    )
