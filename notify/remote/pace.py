"""Whether gateways of a store in another process are behind with messages of QoS 0."""

from __future__ import annotations

from collections.abc import Callable

from store.wire.base import WireMessage
from store.wire.handshake import PACING_VERSION
from store.wire.messages import Welcome
from store.wire.pace_messages import Behind, Slow


class RemotePace:
    """Whether this gateway is behind, as it told its store, and whether others are. Each connection begins anew."""

    def __init__(self, tell: Callable[[WireMessage], object]) -> None:
        """`tell` the store something."""
        self._tell = tell
        self._is_told = self._knows = False
        self.is_slow = False  # some gateway is behind, perhaps this one

    def connected(self, welcome: Welcome) -> None:
        self._knows = welcome.version >= PACING_VERSION
        self._is_told = self.is_slow = False

    def heard(self, message: WireMessage) -> bool:
        """Take what the store says of this. False: it is something else."""
        if isinstance(message, Slow):
            self.is_slow = message.is_slow
        return isinstance(message, Slow)

    def tell(self, is_behind: bool) -> None:
        """Whether subscribers of this gateway are behind, now."""
        if self._knows and is_behind != self._is_told:
            self._is_told = is_behind
            self._tell(Behind(is_behind))
