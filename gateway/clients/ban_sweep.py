"""Bans of the whole store at this gateway: they keep clients out, and end connections that are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial

from gateway.auth.bans import Ban, BanKind, Bans
from gateway.auth.errors import AuthError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection, Phase
from gateway.sessions.core import Core
from notify.limits import info_of
from notify.steps import Steps
from store.wire.operator_messages import BanInfo

LOOKED_AT = 100
"""Connections that are compared with the bans in one turn."""


class BanSweep:
    """Keeps the Bans of a gateway and those of the store the same."""

    def __init__(self, core: Core) -> None:
        self._store = core.store.bans
        self._soon = core.scheduler.soon
        self._events = core.events
        self.bans = Bans(self._made)
        self.take([info_of(state) for state in self._store.in_force()], [], ())

    def _made(self, ban: Ban) -> None:
        self._store.made(ban.kind, ban.value, ban.until_ms or 0, ban.reason)

    def take(self, bans: Iterable[BanInfo], lifted: Iterable[tuple[BanKind, str]], here: Iterable[Connection]) -> None:
        """Take over bans that were set and lifted at the store. End connections of `here` that are banned, in steps."""
        try:
            self.bans.take(bans, lifted)
        except AuthError as error:
            self._events.error("ban", "a ban of the store's is not in force here: %s", error)
        if bans:
            Steps(partial(self._look_at_some, deque(here)), self._soon).start()

    def _look_at_some(self, here: deque[Connection]) -> bool:
        """Compare the next few connections with the bans. True if there are more."""
        for _ in range(min(LOOKED_AT, len(here))):
            connection = here.popleft()
            if connection.phase is not Phase.CLOSED:
                self.look_at(connection)
        return bool(here)

    def look_at(self, connection: Connection) -> None:
        """End the connection if its client is banned."""
        if not len(self.bans):
            return
        client_id = connection.session.client_id if connection.session is not None else ""
        ban = self.bans.find(connection.host, connection.username, client_id, connection.turn.now_ms)
        if ban is not None:
            self._events.warning("ban", "%s: cut off, its %s is banned: %s", connection.peer, ban.kind, ban.reason)
            reason_code = ReasonCode.BANNED if connection.phase is Phase.NEW else ReasonCode.ADMINISTRATIVE_ACTION
            connection.close(reason_code, f"banned: {ban.reason}" if ban.reason else "banned")
