"""What a flow has done since its process started, and how it tells the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from penstock.sdk.errors import ClientError, ConnectionLost, StoreRefused, TimedOut
from penstock.sdk.subscription import Subscription
from store.state.consumer_work import MOST_ERROR_CHARACTERS, ConsumerWork
from store.wire.messages import FailureCode

log = logging.getLogger("penstock.flows")

TOLD_EVERY_S: Final = 2.0
PASSES: Final = (FailureCode.STORE_FULL, FailureCode.UNAVAILABLE)


def may_pass(error: ClientError) -> bool:
    """Whether the store may do later what it does not do now: it is away, or its disk is full."""
    return isinstance(error, ConnectionLost | TimedOut) or (isinstance(error, StoreRefused) and error.code in PASSES)


class FlowCounts:
    """What became of a flow's messages, and the error that came last."""

    def __init__(self) -> None:
        self.taken = self.passed = self.sent = self.failed = self.dead = 0
        self.lost = 0  # gone before it was read
        self.lag: int | None = None  # what waits in Kafka, or in a queue of AMQP
        self.error = ""
        self.error_ms = 0

    def note(self, error: str) -> None:
        """An error came, of a message or of the place."""
        self.error, self.error_ms = error[:MOST_ERROR_CHARACTERS], int(time.time() * 1000)

    def work(self, outages: int, is_away: bool) -> ConsumerWork:
        """As the store shows it."""
        return ConsumerWork(
            self.sent, self.failed, self.dead, self.lost, outages, self.lag, is_away, self.error, self.error_ms
        )

    def __str__(self) -> str:
        dealt = f"{self.taken} taken, {self.passed} passed, {self.sent} sent"
        lost = f", {self.lost} lost" if self.lost else ""
        return f"{dealt}, {self.failed} failed, {self.dead} dead letters{lost}"


async def tell_store(
    flow: str, group: Subscription, work: Callable[[], ConsumerWork], paused: Callable[[bool], object] = bool
) -> None:
    """Tell a flow's work again and again. `paused` hears each time whether the group is. Ends with a store that is too
    old."""
    while True:
        try:
            paused(await group.tell_work(work()))
        except StoreRefused as error:
            log.warning("flow %s: its figures are not shown: %s", flow, error)
            return
        except ClientError:
            pass  # the connection is made again, and says why
        await asyncio.sleep(TOLD_EVERY_S)
