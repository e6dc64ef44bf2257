"""Which gateways of a store are behind with messages of QoS 0: then all gateways read less from publishers."""

from __future__ import annotations

from collections.abc import Callable

from notify.local.member import Member
from store.wire.pace_messages import Slow


class GatewayPace:
    """Owner of who is behind, in a store."""

    def __init__(self, tell: Callable[[Slow], None]) -> None:
        """`tell` all gateways something."""
        self._tell = tell
        self._behind: set[Member] = set()

    @property
    def is_slow(self) -> bool:
        """Whether some gateway is behind."""
        return bool(self._behind)

    def heard(self, member: Member, is_behind: bool) -> None:
        """A gateway says whether it is behind; one that has left is not."""
        was_slow = self.is_slow
        if is_behind:
            self._behind.add(member)
        else:
            self._behind.discard(member)
        if self.is_slow != was_slow:
            self._tell(Slow(self.is_slow))
