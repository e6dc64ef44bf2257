"""Errors of the light queues."""


class LightQueueError(Exception):
    """Base of every error of the light queues."""


class NoSuchPosition(LightQueueError):
    """A replay position that cannot be understood."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"'{text}' is not a position: use earliest, -90s, -15m, -1h, -7d, an RFC 3339 time or a number"
        )
