"""A stop by signal: loops over subscriptions end, also of consumers that have nothing to do."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stoppable(Protocol):
    """A Subscription, of asyncio or not."""

    def stop(self) -> object: ...


@contextmanager
def stop_on_signals(*subscriptions: Stoppable, signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """In the block the first signal ends the loops over these; a second one does what it would have done without.

    What is being worked on can be finished and acked. To be entered by the main thread. Raises ValueError elsewhere.
    """
    before = {each: signal.getsignal(each) for each in signals}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def told(_: int, __: FrameType | None) -> None:
        restore()
        for subscription in subscriptions:
            subscription.stop()

    for each in signals:
        signal.signal(each, told)
    try:
        yield
    finally:
        restore()
