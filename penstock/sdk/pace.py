"""How many messages a consumer asks for in advance: as many as the program finishes in AHEAD_S. No I/O."""

from __future__ import annotations

from time import monotonic

AHEAD_S = 0.2
PATIENCE_S = 1.0  # a message that the program has not taken so long after the batch goes back
MOST_GROWTH = 4  # from one batch to the next


class TakingPace:
    """The speed of a program, from its last batch."""

    __slots__ = ("_most", "_taken", "ahead", "patience_s")

    def __init__(self, most: int) -> None:
        self._most = most
        self.ahead = 0  # messages to ask for before the program waits for one; `most` at most
        self.patience_s = 0.0  # until then the program should take the messages of its batch, by time.monotonic()
        self._taken: tuple[float, int] | None = None  # when it took its batch, and the number of messages

    def took(self, number: int, now_s: float, until_s: float) -> None:
        """The program took a batch, which is this consumer's for certain `until_s`."""
        self._taken = now_s, number
        self.patience_s = min(now_s + PATIENCE_S, until_s)

    def measure(self) -> None:
        """The program wants its next batch: the one before is finished."""
        if self._taken is not None:
            taken_s, number = self._taken
            self._taken = None
            each_s = max(monotonic() - taken_s, 1e-6) / number
            self.ahead = min(int(AHEAD_S / each_s), MOST_GROWTH * max(1, self.ahead), self._most)

    def is_overdue(self, now_s: float) -> bool:
        """Whether the program should have finished its batch by now."""
        return self._taken is not None and now_s > self.patience_s

    def reset(self) -> None:
        """All messages go back: ask for none in advance."""
        self.ahead = 0
        self._taken = None
