"""Listings of client identifiers that go through the names present at their first request, page by page."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

MOST_LISTINGS = 16
"""Listings of one connection that may be under way; an older one is to be begun anew."""
PAGE_BYTES = 48 << 10
"""Text behind which a page ends. One name may add as much, and 128 KiB by its last item: the smallest frame fits."""
_INDEX_BITS = 40


class ListingEnded(ValueError):
    """A page of a listing that is not known any more."""

    def __init__(self) -> None:
        super().__init__("this listing ended, or too many others began since; begin it anew with after = 0")


class NameSnapshots:
    """Owner of the names of listings that are under way, of one connection."""

    def __init__(self, names: Callable[[], list[str]]) -> None:
        self._names = names
        self._listings: OrderedDict[int, list[str]] = OrderedDict()
        self._newest = 0

    def page(self, after: int, most: int) -> NamesPage:
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


class NamesPage:
    """Names, one after another, until there are enough of them or what is said of them takes PAGE_BYTES.

    `after`, once it was iterated: what to ask for the names behind it; None: that was all.
    """

    def __init__(self, names: list[str], index: int, most: int, ended: Callable[[], object], listing: int) -> None:
        self.after: int | None = None
        self._names = names
        self._index = index
        self._end = min(len(names), index + most)
        self._ended = ended
        self._listing = listing
        self._size_bytes = self._of_name_bytes = 0

    def __iter__(self) -> Iterator[str]:
        while self._index < self._end and self._size_bytes < PAGE_BYTES:
            self._of_name_bytes = 0
            self._index += 1
            yield self._names[self._index - 1]
        if self._index < len(self._names):
            self.after = self._listing | self._index
        else:
            self._ended()

    def takes(self, *texts: str) -> bool:
        """Whether there is room for one more item, with these texts, of the name that was given last.

        An item that is its first always has room, and so have items of PAGE_BYTES.
        """
        if self._of_name_bytes >= PAGE_BYTES:
            return False
        size_bytes = sum(len(each.encode()) for each in texts)
        self._of_name_bytes += size_bytes
        self._size_bytes += size_bytes
        return True
