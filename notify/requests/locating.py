"""Locates the position in a queue that a peer names."""

from __future__ import annotations

from collections.abc import Callable

from notify.local.store import LocalStore
from notify.requests.contents import filter_fault
from notify.requests.refusals import failure_code
from store.errors import StoreError
from store.wire import messages as wire


def locate(store: LocalStore, message: wire.Locate, answer: Callable[[wire.WireMessage], None]) -> None:
    """Call `answer` with the position, now or later."""
    fault = filter_fault(message.topic_filter)
    if fault:
        answer(wire.Failed(wire.FailureCode.BAD_REQUEST, f"topic filter {fault}"))
        return

    def then(position: int | None) -> None:
        if position is None:
            text = f"{message.where!r} is no position in a stored queue of {message.topic_filter!r}"
            answer(wire.Failed(wire.FailureCode.NO_SUCH_POSITION, text))
        else:
            answer(wire.Located(position))

    try:
        store.queues.locate(message.topic_filter, message.where, then)
    except StoreError as error:
        answer(wire.Failed(failure_code(error), str(error)))
