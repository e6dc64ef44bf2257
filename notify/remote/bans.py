"""The bans of a store in another process, and the failed logins before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from notify.api import SessionListener
from notify.bans import state_of
from store.state.bans import BanKey, BanState
from store.state.changes import BanKind
from store.wire.base import WireMessage
from store.wire.handshake import LOGINS_VERSION, OPERATORS_VERSION
from store.wire.messages import Welcome
from store.wire.operator_messages import BanMade, BansTold, Disconnect, LoginEnd, LoginsEnded


class RemoteBans:
    """Owner of what a store in another process has told of bans."""

    def __init__(self, tell: Callable[[WireMessage], object], welcome: Callable[[], Welcome | None]) -> None:
        """`tell` the store something; `welcome`: of the connection to it, if there is one."""
        self._states: dict[BanKey, BanState] = {}
        self._tell = tell
        self._welcome = welcome
        self.count_logins: Callable[[Sequence[LoginEnd]], object] = lambda ends: None
        """Is told how logins ended at other doors."""

    def in_force(self) -> list[BanState]:
        return list(self._states.values())

    def made(self, kind: BanKind, value: str, until_ms: int, reason: str) -> None:
        if self._knows(OPERATORS_VERSION):
            self._tell(BanMade(kind, value, until_ms, reason))

    def logins_ended(self, ended: LoginsEnded) -> None:
        """At this gateway."""
        if self._knows(LOGINS_VERSION):
            self._tell(ended)

    def _knows(self, version: int) -> bool:
        """Whether there is a store, and one of this version."""
        welcome = self._welcome()
        return welcome is not None and welcome.version >= version

    def heard(self, message: WireMessage, listener: SessionListener) -> bool:
        """Take what the store says of bans and operators, and pass it on. False: it is something else."""
        if isinstance(message, BansTold):
            self._take(message, listener)
        elif isinstance(message, LoginsEnded):
            self.count_logins(message.ends)
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
