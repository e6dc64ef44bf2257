"""What a Turn calls: the compiled parser and the sockets call up through this interface alone."""

from __future__ import annotations

from typing import Protocol


class TurnOwner(Protocol):
    """The broker, as its Turn calls it. None of these calls may close the Turn or replace it."""

    def wake(self) -> None:
        """There is something to end the turn for, for the first time since it began. Called once in a turn."""

    def end_turn(self) -> None:
        """Store, acknowledge, deliver, send. Called when Sockets has read all that came, or 16 chunks of it."""

    def store_batch(self) -> None:
        """The batch is full: store it now. The turn goes on."""

    def settle(self) -> None:
        """A message comes after subscriptions that were read in the same turn. The subscriptions take effect first."""

    def shed_incomplete(self, is_open: bool) -> None:
        """Packets that are not whole take up more than their limit: of links with a session (`is_open`), or without."""
