"""Whether a store may answer: one of a cluster may while it leads."""

from __future__ import annotations

from typing import Protocol


class StoreLead(Protocol):
    """The part that a store has in its cluster."""

    def why_not_serving(self) -> str:
        """The reason why this store may not answer now; empty: it may. Asked with each request: without I/O."""
