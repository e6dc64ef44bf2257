"""A connection of a peer, as what is behind it sees it."""

from __future__ import annotations

from typing import Protocol

from notify.api import Told
from store.wire import messages as wire
from store.wire.operator_messages import Describe, TellFigures


class Line(Protocol):
    """A connection of a peer."""

    def wake(self) -> None:
        """There is something to be sent, soon."""

    def tell_taken_over(self, client_id: str) -> None: ...

    def told(self, message: Told | wire.Judge | Describe | TellFigures) -> None: ...

    def close(self, reason: str) -> None:
        """Say goodbye, and nothing more."""
