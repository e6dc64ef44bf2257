"""Offsets as ranges, which is how they stand in the log and go over the wire."""

from collections.abc import Iterable, Iterator, Sequence


def as_ranges(offsets: Iterable[int]) -> list[int]:
    """The first of each range and how many, again and again."""
    ranges: list[int] = []
    end = -1
    for offset in offsets:
        if offset == end:
            ranges[-1] += 1
        else:
            ranges += (offset, 1)
        end = offset + 1
    return ranges


def in_ranges(ranges: Sequence[int]) -> Iterator[int]:
    """The queue_offsets that as_ranges() made these of."""
    for first, count in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(first, first + count)
