"""What waits in the store: delayed messages, and retained ones."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.pages.topic import row
from penstock.console.views.readable import EVERYTHING
from penstock.console.views.retained import RetainedPlace, retained_page
from penstock.sdk.message import Pending
from store.wire import messages as wire

ROWS = 50


@page("/delayed")
async def delayed_page(visit: PageVisit) -> Response:
    """Delayed messages of a filter, those first that are due first."""
    topic_filter = visit.asked("filter") or "#"
    found: list[Pending] = []
    async for pending in visit.caller.connection.delayed(topic_filter):
        found.append(pending)
        if len(found) > ROWS:
            break
    return visit.show("delayed.html", pending=found[:ROWS], more=len(found) > ROWS, topic_filter=topic_filter)


@page("/delayed/cancel", ["POST"])
async def cancel(visit: PageVisit) -> Response:
    form = await visit.form()
    numbers = form.get("at", ""), form.get("due", "")
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in numbers):
        raise Problem(400, "bad-parameter", "no delayed message", "choose one on the page Delayed")
    request = wire.CancelDelayed(int(numbers[0]), int(numbers[1]))
    done, _ = await visit.caller.connection.request(request, wire.DelayedCancelled)
    what = "Cancelled" if done.was_pending else "Not in time: it is published"
    return visit.show("done.html", what=what, name="", row=f"delayed-{int(numbers[0])}")


@page("/retained")
async def retained(visit: PageVisit) -> Response:
    connection = visit.caller.connection
    topic_filter, after = visit.asked("filter") or EVERYTHING, visit.asked("after")
    place = RetainedPlace(visit.number("part", 0), connection.names.topic(after) if after else "")
    found, following = await retained_page(connection, topic_filter, place, ROWS)
    return visit.show(
        "retained.html",
        rows=[row(message) for message in found],
        part=None if following is None else following.filter_number,
        after=connection.names.plain_topic(following.after) if following is not None else "",
        topic_filter=topic_filter,
    )


@page("/retained/remove", ["POST"])
async def remove(visit: PageVisit) -> Response:
    form = await visit.form()
    topic, row = form.get("topic", ""), form.get("row", "")
    if not (row.isascii() and row.isdigit()):
        raise Problem(400, "bad-parameter", "no row of a retained message", "choose one on the page Retained")
    await visit.caller.connection.publish(topic, b"", retain=True)
    return visit.show("done.html", what="Removed the retained message of", name=topic, row=f"retained-{row}")
