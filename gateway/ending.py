"""When a turn is ended that was not begun by a look at the sockets: in the loop's next turn, one long one at a time.

The loop does what was asked for, then it looks at the sockets, and what came in ends a turn as well. Where the first
took long, the second waits for the loop's next turn (gateway/mqtt/parts/_sockets.pxi); and then it comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from gateway.mqtt._mqtt import Turn
from gateway.mqtt.turn_owner import TurnOwner

LONG_S = 0.001


class EndingOwner(TurnOwner, Protocol):
    """The broker: it has one turn after another."""

    @property
    def turn(self) -> Turn: ...


class Ending:
    """However often it is asked, one turn is ended."""

    def __init__(self, owner: EndingOwner, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`call_soon` is the loop's."""
        self._owner = owner
        self._call_soon = call_soon
        self._comes = False  # in the loop's next turn

    def ask(self) -> None:
        if not self._comes:
            self._comes = True
            self._call_soon(self._end)

    def _end(self) -> None:
        """Unless it was ended meanwhile, and nothing more was asked for since."""
        self._comes = False
        turn = self._owner.turn
        if turn.owes_look:
            turn.owes_look = False
            self.ask()
        elif turn.unsent:
            turn.send()
            self.ask()
        elif turn.scheduled:
            began_s = time.perf_counter()
            self._owner.end_turn()
            turn.was_long = time.perf_counter() - began_s >= LONG_S
        elif turn.crowded:
            turn.send()
            if turn.crowd_is_served:
                turn.request()  # who brought it goes on
            else:
                self.ask()
