"""A log, and the tier that has what the log has dropped: read as one, by log_offset.

The log takes over where it begins, at the seam. A message has one log_offset, in the table and in the log, so a range
has the same rows wherever the seam is when it is read: neither a plan nor a stream's position has to keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from penstock.spark.errors import DataLost
from penstock.spark.logs import Log
from penstock.spark.options import Request

if TYPE_CHECKING:
    from penstock.spark.tier import TierFiles

T = TypeVar("T")
Place = int  # a log_offset


class LogAndTier:
    """Places and ranges of both. Without the option `tier` it has what the log has."""

    def __init__(self, log: Log, request: Request | None = None) -> None:
        """`request`: what is read of it."""
        self.log = log
        self._request = request

    @property
    def path(self) -> object:
        return self.log.path

    @cached_property
    def tier(self) -> TierFiles:
        """Raises TierUnreadable."""
        from penstock.spark.tier import TierFiles  # needs the extra `tier`

        assert self._request is not None
        return TierFiles(self._request, self.log.identity)

    @property
    def has_tier(self) -> bool:
        return self._request is not None and self._request.tier is not None

    def identity(self) -> str:
        return self.log.identity()

    def base(self, wanted: Place = 0) -> Place:
        """log_offset where the history begins. The tier is asked only if the log has not what is wanted."""
        base = self.log.base()
        return min(base, self.tier.listing.first) if wanted < base and self.has_tier else base

    def end(self) -> Place:
        return self.log.end()

    def is_record(self, log_offset: Place) -> bool:
        """As the log says it. What is before the log cannot be said, and is taken for one."""
        return (self.has_tier and log_offset < self.log.base()) or self.log.is_record(log_offset)

    def nearest(self, log_offset: Place) -> Place:
        found = self.log.nearest(log_offset)
        return log_offset if self.has_tier and log_offset < self.log.base() else found

    def position_at(self, timestamp_ms: int) -> Place:
        """log_offset of the first message that was stored at this time or later; the end if there is none."""
        found = self.log.position_at(timestamp_ms)
        base = self.log.base()
        if not self.has_tier or not base or not self._begins_at(found, base):
            return found
        return self.tier.position_at(timestamp_ms, found)

    def _begins_at(self, log_offset: Place, base: Place) -> bool:
        """Whether no message of the log is before this place."""
        return log_offset <= base or log_offset <= self.log.nearest(base + 1)

    def seam(self, start: Place, end: Place) -> Place:
        """Where in [start, end) the log takes over, as of now."""
        return min(max(start, self.log.base()), end) if self.has_tier else start

    def pieces(
        self,
        start: Place,
        end: Place,
        of_tier: Callable[[Place, Place], Iterator[T]],
        of_log: Callable[[Place, Place], Iterator[tuple[T, Place]]],
    ) -> Iterator[T]:
        """What both have of [start, end), also while retention drops some of it.

        `of_log` gives pieces, each with the place from where to go on after it, and raises DataLost at what has been
        dropped: that is read in the tier, or passed over if data may be lost. Raises DataLost.
        """
        at = start
        while at < end:
            try:
                for piece, behind in of_log(at, end):
                    yield piece
                    at = behind
                return
            except DataLost:
                base = self.log.base()
                may_lose = self._request is not None and not self._request.fail_on_data_loss
                if base <= at or not (self.has_tier or may_lose):
                    raise
            if self.has_tier:
                yield from of_tier(at, min(base, end))
            at = min(base, end)
