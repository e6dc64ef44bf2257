"""Listings of client identifiers that go through the names present at their first request, page by page."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_LISTINGS = 16
"""Listings of one connection that may be under way; an older one is to be begun anew."""
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

    def page(self, after: int, most: int) -> tuple[list[str], int | None]:
        """The next names, and the `after` of those behind them (None: that was all). Raises ListingEnded."""
        number, index = (after >> _INDEX_BITS, after & ((1 << _INDEX_BITS) - 1)) if after else (0, 0)
        names = self._listings.get(number) if after else self._names()
        if names is None:
            raise ListingEnded
        end = index + most
        if end >= len(names):
            self._listings.pop(number, None)
            return names[index:], None
        if not after:
            self._newest = number = self._newest + 1
            self._listings[number] = names
            if len(self._listings) > MOST_LISTINGS:
                self._listings.popitem(last=False)
        return names[index:end], number << _INDEX_BITS | end
