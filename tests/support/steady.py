"""What writes again and again on a thread of its own, whatever is killed meanwhile."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from penstock.sdk.errors import ClientError
from penstock.sync import Client

PATIENCE_S = 120
TOGETHER = 20
PAUSE_S = 0.01

T = TypeVar("T")


class SteadyWriter(ABC, Generic[T]):
    """Begins when it is made. finish() may come more than once."""

    def __init__(self, opened: Callable[[], AbstractContextManager[T]], pause_s: float = PAUSE_S) -> None:
        """`opened`: what it writes with, made and closed on its thread. `pause_s`: between two write()."""
        self._opened, self._pause_s = opened, pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with self._opened() as client:
            while not self._stopping.is_set():
                self.write(client)
                self._stopping.wait(self._pause_s)

    @abstractmethod
    def write(self, client: T) -> None:
        """Some more."""


class NumbersPublisher(SteadyWriter[Client]):
    """Publishes numbers to plant/N/temp, and knows which were acknowledged."""

    def __init__(self, url: str, pause_s: float = PAUSE_S) -> None:
        self.acked: set[int] = set()
        self.sent = 0
        super().__init__(lambda: Client(url, timeout_s=PATIENCE_S), pause_s)

    def write(self, client: Client) -> None:
        numbers = range(self.sent, self.sent + TOGETHER)
        self.sent += TOGETHER
        try:
            client.publish_many([(f"plant/{i % 7}/temp", b"%d" % i) for i in numbers])
        except ClientError:
            return
        self.acked.update(numbers)
