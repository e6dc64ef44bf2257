"""Checks of passwords that are under way: never more than could all fail without passing a limit. No I/O.

A limit is looked at before a check and counted after it, so checks at the same time would get through it together.
A check without room waits until another one ends, so no login is refused that may be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from gateway.auth.identity import Credentials

LOOKED_AT = 16
"""Checks that go on in one turn of the loop because another one ended."""

Then = Callable[[], None]


class UnderWay:
    """Owner of the checks that have begun, and of those that wait for them."""

    def __init__(self, room: Callable[[str, str], dict[Hashable, int]], soon: Callable[[Then], object]) -> None:
        """`room`: by limit that holds for a user at an address, how many more may fail before it is reached. `soon`
        runs a function in a later turn of the loop.
        """
        self._room = room
        self._soon = soon
        self._begun: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, dict[object, Then]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def begin(self, credentials: Credentials, again: Then | None) -> Then | None:
        """Count a check that begins; returns what to call once it has ended and its failure was counted.

        None: there is no room; `again` is called once there may be, unless the client leaves.
        """
        room = self._room(credentials.source, credentials.username or "")
        for key, left in room.items():
            if self._begun[key] >= max(1, left):
                if again is not None:
                    self._wait(key, credentials, again)
                return None
        self._begun.update(room.keys())
        return lambda: self._end(tuple(room))

    def _wait(self, key: Hashable, credentials: Credentials, again: Then) -> None:
        waiting, name = self._waiting.setdefault(key, {}), object()
        waiting[name] = again
        credentials.attempt.waits(lambda: waiting.pop(name, None) and None)

    def _end(self, keys: tuple[Hashable, ...]) -> None:
        self._begun.subtract(keys)
        for key in keys:
            if not self._begun[key]:
                del self._begun[key]
            self._go_on(key)

    def _go_on(self, key: Hashable) -> None:
        """Let some of the waiting jobs go on. More go on later, unless one of these ends before that."""
        waiting = self._waiting.get(key)
        for _ in range(LOOKED_AT):
            if not waiting:
                self._waiting.pop(key, None)
                return
            waiting.pop(next(iter(waiting)))()
        if not self._begun[key]:
            self._soon(lambda: self._go_on(key))
