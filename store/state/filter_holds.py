"""The queues of topic filters, as the state that holds them calls them."""

from __future__ import annotations

from typing import Protocol


class FilterHolds(Protocol):
    """The queues of a store. All calls come while a record is applied: nothing may be stored now."""

    def hold(self, topic_filter: str, log_offset: int) -> None:
        """Messages of this filter are to be kept once more; from this log_offset on, if nobody held them so far."""

    def release(self, topic_filter: str) -> None:
        """They are to be kept once less."""

    def end_of(self, topic_filter: str) -> int:
        """The queue_offset behind the last message of the filter's queue."""
