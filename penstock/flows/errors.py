"""Errors of flows, one line each: the flow, the field, what is wrong with it, and the remedy."""

from __future__ import annotations

from penstock.errors import UsageError


class FlowError(UsageError):
    """A flow is not what it should be. Nothing starts."""

    def __init__(self, flow: str, field: str, reason: str, remedy: str) -> None:
        where = f"flow.{flow}.{field}" if field else f"flow.{flow}"
        super().__init__(f"{where}: {reason}; {remedy}")


class Unfit(Exception):
    """A message that the flow cannot be of use for: a dead letter with this reason."""


class SinkRefused(Exception):
    """The sink does not take these messages, however often they come: dead letters with this reason."""


class SinkFailed(Exception):
    """The sink failed with these messages, and may take them later. Each time counts.

    `after_s`: when the sink says that it may be asked again; None: it does not say.
    """

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class SinkAway(SinkFailed):
    """The sink takes nothing now, whatever it is. It does not count, and nothing else is tried meanwhile."""


class SinkLost(Exception):
    """The sink is another's now: this flow is over."""
