"""The messages of a topic filter in log format, as pages take them: a row group's are put together once, for all pages.

The columns of a row group are sorted by topic. Read from front to back they give their messages four times as fast as
in the order of the log. Where several row groups have one range of the log in common, a part of it is brought together
from the messages of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.tier.history import Place, Span, TableHistory
from penstock.tier.record_part import ChosenRows, OrderedRows, RecordPart, Selection, merged

PART_LOG_BYTES: Final = 1 << 20  # of a range that row groups have in common; more for a filter that matches few
MOST_PUT_BYTES: Final = 32 << 20  # of a row group's messages; if there are more they are made for each page


class _Divided(NamedTuple):
    """How the messages of a filter in a span are divided: part n has those from first + n * width on."""

    first: int
    end: int
    width: int
    nbytes: int = 300

    @property
    def parts(self) -> range:
        return range(-(-(self.end - self.first) // self.width))


class PartReading:
    """For several threads: what is made stays in the history's cache. Every method raises TierError."""

    def __init__(self, history: TableHistory) -> None:
        self._history = history
        self._cache = history.cache

    def parts(self, span: Span, topic_filter: str, start: int, stop: int) -> Iterator[OrderedRows]:
        """What a span has of a filter, in parts that follow each other: all that has start <= log_offset < stop."""
        if len(span.places) == 1:
            yield from filter(None, [self._of_group(span.places[0], topic_filter)])
            return
        divided = self._divided(span, topic_filter)
        for number in divided.parts[max(0, (start - divided.first) // divided.width) :]:
            at = divided.first + number * divided.width
            if at >= stop:
                return
            yield self._part(span, topic_filter, at, at + divided.width)

    def prepare(self, span: Span, topic_filter: str) -> list[Place]:
        """Have ready what parts() needs of the storage. Returns the row groups that have some of it."""
        return [place for place in span.places if self._of_group(place, topic_filter) is not None]

    def is_prepared(self, span: Span, topic_filter: str) -> bool:
        """Whether parts() need not wait for storage."""
        return all(
            ("messages", place, topic_filter) in self._cache or self._history.has_selected(place, topic_filter)
            for place in span.places
        )

    def _of_group(self, place: Place, topic_filter: str) -> OrderedRows | None:
        """What a row group has; None: nothing."""
        name = ("messages", place, topic_filter)
        made: RecordPart | None = self._cache.seen(name)
        if made is not None:
            return made
        found = self._history.selection(place, topic_filter)
        if found is None:
            return None
        rows = ChosenRows([found])
        return rows if rows.size_bytes > MOST_PUT_BYTES else self._cache.get(name, rows.made)

    def _divided(self, span: Span, topic_filter: str) -> _Divided:
        def read() -> _Divided:
            places = span.places
            found = [each for place in places if (each := self._of_group(place, topic_filter)) is not None]
            if not found:
                return _Divided(span.start, span.start, 1)
            first = min(int(each.log_offsets[0]) for each in found)
            end = max(int(each.log_offsets[-1]) + 1 for each in found)
            rows = sum(self._history.index(place).rows for place in places)
            share = rows // sum(len(each.log_offsets) for each in found)
            return _Divided(first, end, PART_LOG_BYTES * max(1, share))

        return self._cache.get(("divided", span.places[0], topic_filter), read)

    def _part(self, span: Span, topic_filter: str, start: int, stop: int) -> OrderedRows:
        name = ("part", span.places[0], topic_filter, start)
        made: RecordPart | None = self._cache.seen(name)
        if made is not None:
            return made
        found = [each for place in span.places if (each := self._of_group(place, topic_filter)) is not None]
        of_groups = [each for each in found if isinstance(each, RecordPart)]
        if len(of_groups) == len(found):
            return self._cache.get(name, lambda: merged([each.between(start, stop) for each in of_groups]))
        return ChosenRows(list(self._selected(span, topic_filter, start, stop)))

    def _selected(self, span: Span, topic_filter: str, start: int, stop: int) -> Iterator[Selection]:
        for place in span.places:
            found = self._history.selection(place, topic_filter)
            if found is not None:
                yield found.between(start, stop)
