"""The bans of a store in another process."""

from __future__ import annotations

from collections.abc import Callable

from notify.api import SessionListener
from notify.bans import state_of
from store.state.bans import BanKey, BanState
from store.state.changes import BanKind
from store.wire.base import WireMessage
from store.wire.handshake import OPERATORS_VERSION
from store.wire.messages import Welcome
from store.wire.operator_messages import BanMade, BansTold, Disconnect


class RemoteBans:
    """Owner of what a store in another process has told of bans."""

    def __init__(self, tell: Callable[[WireMessage], object], welcome: Callable[[], Welcome | None]) -> None:
        """`tell` the store something; `welcome`: of the connection to it, if there is one."""
        self._states: dict[BanKey, BanState] = {}
        self._tell = tell
        self._welcome = welcome

    def in_force(self) -> list[BanState]:
        return list(self._states.values())

    def made(self, kind: BanKind, value: str, until_ms: int, reason: str) -> None:
        welcome = self._welcome()
        if welcome is not None and welcome.version >= OPERATORS_VERSION:
            self._tell(BanMade(kind, value, until_ms, reason))

    def heard(self, message: WireMessage, listener: SessionListener) -> bool:
        """Take what the store says of bans and operators, and pass it on. False: it is something else."""
        if isinstance(message, BansTold):
            self._take(message, listener)
        elif isinstance(message, Disconnect):
            listener.told(message)
        else:
            return False
        return True

    def _take(self, message: BansTold, listener: SessionListener) -> None:
        lifted = list(message.lifted)
        if message.anew:
            stay = {(info.kind, info.value) for info in message.bans}
            lifted = [key for key in self._states if key not in stay]
        for key in lifted:
            self._states.pop(key, None)
        self._states.update(((info.kind, info.value), state_of(info)) for info in message.bans)
        listener.told(BansTold(message.bans, lifted, False))
