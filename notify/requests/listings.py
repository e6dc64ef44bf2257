"""Listings that go through the names present at their first request, page by page; and who reads a topic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from notify.local.hub import Hub
from store.state.sessions import is_shared
from store.topics import SHARE_PREFIX, matches
from store.wire.operator_messages import TopicReader, TopicReaders, TopicReadersFound

MOST_LISTINGS = 16
"""Listings of one connection that may be under way; an older one is to be begun anew."""
PAGE_BYTES = 48 << 10
"""Text after which a page ends. One name may add as much, and 128 KiB by its last item: the smallest frame fits."""
_INDEX_BITS = 40
LOOKED_AT = 2_000
"""Sessions, or groups, that one request looks at."""
AT_ONCE = 16
FREED_AT_ONCE = 10_000
MOST_OF_SESSION = 100
"""Filters of one session that are listed, if they are not too long for a page."""


Named = TypeVar("Named")
"""What a listing goes through: mostly names."""


class ListingEnded(ValueError):
    """A page of a listing that is not known any more."""

    def __init__(self) -> None:
        super().__init__("this listing ended, or too many others began since; begin it anew with after = 0")


class NameSnapshots(Generic[Named]):
    """Owner of the names of listings that are under way, of one connection."""

    def __init__(self, names: Callable[[], list[Named]]) -> None:
        self._names = names
        self._listings: OrderedDict[int, list[Named]] = OrderedDict()
        self._newest = 0

    def page(self, after: int, most: int) -> NamesPage[Named]:
        """The next names, `most` of them at most. Raises ListingEnded."""
        number, index = (after >> _INDEX_BITS, after & ((1 << _INDEX_BITS) - 1)) if after else (0, 0)
        names = self._listings.get(number) if after else self._names()
        if names is None:
            raise ListingEnded
        if not after:
            self._newest = number = self._newest + 1
            self._listings[number] = names
            if len(self._listings) > MOST_LISTINGS:
                self._listings.popitem(last=False)
        return NamesPage(names, index, most, lambda: self._listings.pop(number, None), number << _INDEX_BITS)


class NamesPage(Generic[Named]):
    """Names, one after another, until there are enough of them or what is said of them takes PAGE_BYTES.

    `after`, once it was iterated: what to ask for the names after it; None: that was all.
    """

    def __init__(self, names: list[Named], index: int, most: int, ended: Callable[[], object], listing: int) -> None:
        self.after: int | None = None
        self._names = names
        self._index = index
        self._end = min(len(names), index + most)
        self._ended = ended
        self._listing = listing
        self._size_bytes = self._of_name_bytes = 0

    def __iter__(self) -> Iterator[Named]:
        while self._index < self._end and self._size_bytes < PAGE_BYTES:
            self._of_name_bytes = 0
            self._index += 1
            yield self._names[self._index - 1]
        if self._index < len(self._names):
            self.after = self._listing | self._index
        else:
            self._ended()

    def forget(self) -> Iterator[None]:
        """Free the names after the last page, in steps: 100,000 at once take a millisecond."""
        while self.after is None and self._names:
            del self._names[-FREED_AT_ONCE:]
            yield

    def takes(self, *texts: str) -> bool:
        """True if a page has room for one more item with these texts, of the name that was given last.

        An item that is its first always has room, and so have items of PAGE_BYTES.
        """
        if self._of_name_bytes >= PAGE_BYTES:
            return False
        size_bytes = sum(len(each.encode()) for each in texts)
        self._of_name_bytes += size_bytes
        self._size_bytes += size_bytes
        return True


def find_readers(
    hub: Hub, names: NameSnapshots[str], request: TopicReaders, done: Callable[[TopicReadersFound], None]
) -> Iterator[None]:
    """`done` gets the answer, with all groups if it is the first of a listing. Raises ListingEnded."""
    return _look(hub, names.page(request.after, LOOKED_AT), request, done)


def _look(
    hub: Hub, names: NamesPage[str], request: TopicReaders, done: Callable[[TopicReadersFound], None]
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
    yield from names.forget()


def _plain(topic_filter: str) -> str:
    """The filter after `$share/NAME/`."""
    return topic_filter.removeprefix(SHARE_PREFIX).partition("/")[2] if is_shared(topic_filter) else topic_filter
