"""Whether a store may answer: one of a cluster may while it leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class StoreLead(Protocol):
    """The part that a store has in its cluster."""

    def why_not_serving(self) -> str:
        """The reason why this store may not answer now; empty: it may. Asked with each request: without I/O."""


class WatchedLead:
    """StoreLead that tells when this store may answer again."""

    def __init__(self, lead: StoreLead, on_return: Callable[[], None]) -> None:
        self._lead = lead
        self._on_return = on_return
        self._is_lost = False

    def why_not_serving(self) -> str:
        why = self._lead.why_not_serving()
        was_lost, self._is_lost = self._is_lost, bool(why)
        if was_lost and not why:
            self._on_return()
        return why
