"""Who reads a topic: sessions and consumer groups whose filters match it, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from notify.local.hub import Hub
from notify.requests.name_snapshots import NameSnapshots, NamesPage
from store.state.sessions import is_shared
from store.topics import SHARE_PREFIX, matches
from store.wire.operator_messages import TopicReader, TopicReaders, TopicReadersFound

LOOKED_AT = 2_000
"""Sessions that one request looks at."""
AT_ONCE = 16
MOST_OF_SESSION = 100
"""Filters of one session that are listed, if they are not too long for a page."""


def find_readers(
    hub: Hub, names: NameSnapshots, request: TopicReaders, done: Callable[[TopicReadersFound], None]
) -> Iterator[None]:
    """`done` gets the answer, with all groups if it is the first of a listing. Raises ListingEnded."""
    return _look(hub, names.page(request.after, LOOKED_AT), request, done)


def _look(
    hub: Hub, names: NamesPage, request: TopicReaders, done: Callable[[TopicReadersFound], None]
) -> Iterator[None]:
    topic = request.topic
    groups: list[tuple[str, str]] = []
    for number, queue in enumerate(hub.consumers.listed("") if not request.after else ()):
        if matches(queue.state.topic_filter, topic):
            groups.append((queue.state.name, queue.state.topic_filter))
        if number % AT_ONCE == 0:
            yield
    sessions: list[TopicReader] = []
    for number, client_id in enumerate(names):
        state = hub.messages.sessions.get(client_id)
        if state is not None:
            found = [each for each in state.subscriptions.values() if matches(_plain(each.topic_filter), topic)]
            online = bool(found) and hub.claims.holder(client_id) is not None
            for each in found[:MOST_OF_SESSION]:
                if names.takes(client_id, each.topic_filter):
                    sessions.append(TopicReader(client_id, each.topic_filter, each.qos, online))
        if number % AT_ONCE == 0:
            yield
    done(TopicReadersFound(sessions, groups, names.after))


def _plain(topic_filter: str) -> str:
    """The filter behind `$share/NAME/`."""
    return topic_filter.removeprefix(SHARE_PREFIX).partition("/")[2] if is_shared(topic_filter) else topic_filter
