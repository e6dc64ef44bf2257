"""How bans get into the log of a store in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from lightqueue.message_store import MessageStore
from notify.bans import BadBan, info_of, normal
from store.audit import Audit, AuditEvent
from store.errors import StoreError
from store.records._records import RecordBatch
from store.state.bans import MOST_BANS, BanKey, BanState
from store.state.changes import BanKind, BanLifted, BanSet, Change, encode_change
from store.wire.operator_messages import BansTold

MADE_PER_SECOND = 20
"""Bans of gateways' own making that get into the log; others hold at their gateway only."""


class LocalBans:
    """Owner of how bans get into the log of a store in this process."""

    def __init__(self, messages: MessageStore, tell: Callable[[BansTold], object], audit: Audit) -> None:
        """`tell` all gateways something."""
        self.audit = audit
        self._messages = messages
        self._tell = tell
        self._states = messages.bans
        self._changed: dict[BanKey, None] = {}
        self._watchers: list[Callable[[BansTold], object]] = []
        self._states.changed = lambda key: self._changed.setdefault(key, None)
        self._second = 0
        self._made = 0

    def in_force(self) -> list[BanState]:
        now_ms = self._messages.now_ms()
        return [state for state in self._states if state.holds(now_ms)]

    def watch(self, told: Callable[[BansTold], object]) -> None:
        """`told` is called with each later change."""
        self._watchers.append(told)

    def made(self, kind: BanKind, value: str, until_ms: int, reason: str, by: str = "this process") -> None:
        second = self._messages.now_ms() // 1_000
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
        self._messages.append(batch)
        changed, self._changed = self._changed, {}
        found = {key: self._states.get(key) for key in changed}
        came = [info_of(state) for state in found.values() if state is not None]
        told = BansTold(came, [key for key, state in found.items() if state is None], False)
        self._tell(told)
        for watcher in self._watchers:
            watcher(told)

    def _note(self, event: AuditEvent, kind: BanKind, value: str, reason: str) -> None:
        address = value if kind == "address" else ""
        user, client_id = (value if kind == each else "" for each in ("user", "client_id"))
        self.audit.note(event, user=user, client_id=client_id, address=address, reason=reason)
