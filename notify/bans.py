"""Bans between the log and gateways: who sets them, and who is told. A Store (notify.api) has one of these two."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from store.audit import Audit, AuditEvent
from store.errors import StoreError
from store.records._records import RecordBatch
from store.state.bans import MOST_BANS, BanKey, BanState
from store.state.changes import BanKind, BanLifted, BanSet, Change, encode_change
from store.wire.base import Message
from store.wire.handshake import OPERATORS_VERSION
from store.wire.operator_messages import BanInfo, BanMade, BansTold, Disconnect

if TYPE_CHECKING:
    from notify.api import Listener
    from notify.local.hub import Hub
    from store.wire.messages import Welcome

BANS_PER_FRAME = 1_000
MADE_PER_SECOND = 20
"""Bans of gateways' own making that get into the log; others hold at their gateway only."""


class StoreBans(Protocol):
    """What a gateway needs of the store's bans. What changes later its listener is told."""

    def in_force(self) -> list[BanState]:
        """As far as is known here."""

    def made(self, kind: BanKind, value: str, until_ms: int, reason: str) -> None:
        """This gateway made a ban by itself."""


class BadBan(StoreError):
    """A ban that cannot be; says why."""


class LocalBans:
    """Owner of how bans get into the log of a store in this process."""

    def __init__(self, hub: Hub) -> None:
        self.audit = Audit()  # to be replaced by the process's
        self._hub = hub
        self._states = hub.messages.bans
        self._changed: dict[BanKey, None] = {}
        self._states.changed = lambda key: self._changed.setdefault(key, None)
        self._second = 0
        self._made = 0

    def in_force(self) -> list[BanState]:
        now_ms = self._hub.messages.now_ms()
        return [state for state in self._states if state.holds(now_ms)]

    def made(self, kind: BanKind, value: str, until_ms: int, reason: str, by: str = "this process") -> None:
        second = self._hub.messages.now_ms() // 1_000
        if second != self._second:
            self._second, self._made = second, 0
        self._made += 1
        if self._made <= MADE_PER_SECOND:
            with suppress(StoreError):  # it holds at the gateway all the same
                self.set(BanSet(kind, value, until_ms, reason, by, automatic=True))

    def set(self, change: BanSet) -> None:
        """Raises StoreError."""
        value = normal(change.kind, change.value)
        known = self._states.get((change.kind, value))
        if known is None and len(self.in_force()) >= MOST_BANS and not any(state.automatic for state in self._states):
            raise BadBan(f"there are {MOST_BANS} bans already; lift some, or ban a network instead of addresses")
        until_ms, reason = change.until_ms, change.reason
        self._append(BanSet(change.kind, value, until_ms, reason, change.set_by, change.automatic))
        self._note(AuditEvent.BANNED, change.kind, value, f"by {change.set_by}: {reason}")

    def lift(self, kind: BanKind, value: str, by: str) -> bool:
        """False: there is no such ban. Raises StoreError."""
        value = normal(kind, value)
        if self._states.get((kind, value)) is None:
            return False
        self._append(BanLifted(kind, value, by))
        self._note(AuditEvent.BAN_LIFTED, kind, value, f"by {by}")
        return True

    def _append(self, change: Change) -> None:
        batch = RecordBatch()
        batch.append(*encode_change(change))
        self._hub.messages.append(batch)
        changed, self._changed = self._changed, {}
        found = {key: self._states.get(key) for key in changed}
        came = [info_of(state) for state in found.values() if state is not None]
        self._hub.tell(BansTold(came, [key for key, state in found.items() if state is None], False))

    def _note(self, event: AuditEvent, kind: BanKind, value: str, reason: str) -> None:
        address = value if kind == "address" else ""
        user, client_id = (value if kind == each else "" for each in ("user", "client_id"))
        self.audit.note(event, user=user, client_id=client_id, address=address, reason=reason)


class RemoteBans:
    """Owner of what a store in another process has told of bans."""

    def __init__(self, tell: Callable[[Message], object], welcome: Callable[[], Welcome | None]) -> None:
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

    def heard(self, message: Message, listener: Listener) -> bool:
        """Take what the store says of bans and operators, and pass it on. False: it is something else."""
        if isinstance(message, BansTold):
            self._take(message, listener)
        elif isinstance(message, Disconnect):
            listener.told(message)
        else:
            return False
        return True

    def _take(self, message: BansTold, listener: Listener) -> None:
        lifted = list(message.lifted)
        if message.anew:
            stay = {(info.kind, info.value) for info in message.bans}
            lifted = [key for key in self._states if key not in stay]
        for key in lifted:
            self._states.pop(key, None)
        self._states.update(((info.kind, info.value), state_of(info)) for info in message.bans)
        listener.told(BansTold(message.bans, lifted, False))


def normal(kind: BanKind, value: str) -> str:
    """The one spelling of a ban's value. Raises BadBan."""
    if kind != "address":
        return value
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise BadBan(f"{value!r} is no IP address or network, as 192.0.2.7 or 2001:db8::/64") from None
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def info_of(state: BanState) -> BanInfo:
    return BanInfo(state.kind, state.value, state.until_ms, state.reason, state.set_by, state.automatic, state.set_ms)


def state_of(info: BanInfo) -> BanState:
    return BanState(info.kind, info.value, info.until_ms, info.reason, info.set_by, info.automatic, info.set_ms)


def all_told(states: Iterable[BanState]) -> list[BansTold]:
    """Frames that say all there is."""
    infos = [info_of(state) for state in states]
    pages = [infos[at : at + BANS_PER_FRAME] for at in range(0, len(infos), BANS_PER_FRAME)] or [[]]
    return [BansTold(page, [], number == 0) for number, page in enumerate(pages)]
