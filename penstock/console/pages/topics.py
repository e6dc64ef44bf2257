"""The tree of topics, and the search of topics."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.api.topics import check_topic
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.views.readable import EVERYTHING, readable_of

BRANCHES = 100


@page("/topics")
async def topics_page(visit: PageVisit) -> Response:
    """`prefix`: the level, which ends with a slash; `search`: a part of the names; `after`: go on after that."""
    connection = visit.caller.connection
    prefix, text, after = visit.asked("prefix"), visit.asked("search", most=256), visit.asked("after")
    if prefix and not prefix.endswith("/"):
        prefix += "/"
    check_topic(prefix, "prefix")
    views = visit.console.topics
    if text:
        rows, known, following = await views.search(connection, text, prefix, after, BRANCHES)
    else:
        rows, known, following = await views.tree(connection, prefix, after, BRANCHES)
    readable = await readable_of(connection) if not (prefix or after or visit.is_part) else None
    return visit.show(
        "topics_part.html" if visit.is_part else "topics.html",
        rows=rows,
        known=known,
        after=following,
        prefix=prefix,
        search=text,
        crumbs=crumbs(prefix),
        is_first=not after,
        readable=readable if readable is not None and readable.filters != [EVERYTHING] else None,
    )


def crumbs(prefix: str) -> list[tuple[str, str]]:
    """Name and prefix of each level.

    >>> crumbs("a/b/")
    [('a', 'a/'), ('b', 'a/b/')]
    """
    names = prefix.split("/")[:-1]
    return [(name, "/".join(names[: number + 1]) + "/") for number, name in enumerate(names)]
