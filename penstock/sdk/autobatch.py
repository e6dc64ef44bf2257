"""Holding messages back for a moment so that more go out together. The rules alone: no clock, no I/O.

Messages of one topic and one `wait` are one batch. It goes when it has `batch_bytes`, or once its first message has
waited for `delay_s`. That is looked at every half of it, so a lone message leaves after one and a half of it at most.
Of all together no more than `total_bytes` are unanswered; what comes then goes straight through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.sdk.publishing import Entry
from store.wire.messages import Wait

KIB = 1024


@dataclass(frozen=True, slots=True)
class AutoBatch:
    """The bounds of automatic batches: Client(autobatch=...) takes this in place of True."""

    batch_bytes: int = 32 * KIB
    delay_s: float = 0.010
    total_bytes: int = 32 * KIB * KIB

    def __post_init__(self) -> None:
        if self.batch_bytes < 1 or self.delay_s <= 0 or self.total_bytes < self.batch_bytes:
            raise ValueError(f"{self}: batch_bytes and delay_s must be above 0, and total_bytes at least batch_bytes")

    @property
    def tick_s(self) -> float:
        return self.delay_s / 2


@dataclass(slots=True)
class _Open:
    """A batch that is being filled."""

    since_s: float
    entries: list[Entry] = field(default_factory=list)
    size_bytes: int = 0


class Gatherer:
    """Owner of the batches that are being filled. Times are seconds of any clock that does not go back."""

    def __init__(self, settings: AutoBatch) -> None:
        self._settings = settings
        self._open: dict[tuple[str, Wait], _Open] = {}  # oldest first
        self.held_bytes = 0  # gathered here, or sent and not answered

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, entry: Entry, now_s: float) -> Sequence[Entry]:
        """Take a message; those that are to go now, in this order."""
        message = entry.message
        size_bytes = len(message.record)
        is_over = self.held_bytes + size_bytes > self._settings.total_bytes
        self.held_bytes += size_bytes
        group = (message.topic, message.wait)
        batch = self._open.get(group)
        if batch is None:
            batch = self._open[group] = _Open(now_s)
        batch.entries.append(entry)
        batch.size_bytes += size_bytes
        if is_over or batch.size_bytes >= self._settings.batch_bytes:
            return self._open.pop(group).entries
        return ()

    def answered(self, entry: Entry) -> None:
        """A message that was added is not under way any more."""
        self.held_bytes -= len(entry.message.record)

    def due(self, now_s: float) -> list[Sequence[Entry]]:
        """The batches that have waited for long enough. To be called every `tick_s` while there are any."""
        delay_s = self._settings.delay_s
        groups = [group for group, batch in self._open.items() if now_s - batch.since_s >= delay_s]
        return [self._open.pop(group).entries for group in groups]

    def collect(self) -> list[Sequence[Entry]]:
        """Every batch, whether it is due or not."""
        batches, self._open = self._open, {}
        return [batch.entries for batch in batches.values()]
