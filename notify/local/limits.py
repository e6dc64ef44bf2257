"""Limits of clients, for a store in this process: bans, users' quotas as one gateway sees them, publishers' pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from lightqueue.message_store import MessageStore
from notify.limits import BadBan, MessageTaken, SubscriptionsTaken, info_of, normal
from notify.local.members import Member, MemberOwner
from notify.local.user_quotas import UserQuotas
from store.audit import Audit, AuditEvent
from store.errors import StoreError
from store.records._records import RecordBatch
from store.state.bans import MOST_BANS, BanKey, BanState
from store.state.changes import BanKind, BanLifted, BanSet, Change, encode_change
from store.state.usage import Counted
from store.wire.operator_messages import BansTold
from store.wire.pace_messages import Slow

MADE_PER_SECOND = 20
"""Bans of gateways' own making that get into the log; others hold at their gateway only."""


class LocalBans:
    """Owner of how bans get into the log of a store in this process."""

    def __init__(self, messages: MessageStore, owner: MemberOwner, audit: Audit) -> None:
        self.audit = audit
        self._messages = messages
        self._owner = owner
        self._states = messages.bans
        self._changed: dict[BanKey, None] = {}
        self._watchers: list[Callable[[BansTold], object]] = []
        self._states.listen(self)
        self._second = 0
        self._made = 0

    def ban_changed(self, key: BanKey) -> None:
        """As a BanListener: noted, and told once the append that it comes from is over."""
        self._changed.setdefault(key, None)

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
        self._owner.tell(told)
        for watcher in self._watchers:
            watcher(told)

    def _note(self, event: AuditEvent, kind: BanKind, value: str, reason: str) -> None:
        address = value if kind == "address" else ""
        user, client_id = (value if kind == each else "" for each in ("user", "client_id"))
        self.audit.note(event, user=user, client_id=client_id, address=address, reason=reason)


class LocalQuotas:
    """A StoreQuotas (notify.limits) whose answers come at once."""

    told_to = "this process"

    def __init__(self, quotas: UserQuotas, member: Member) -> None:
        self._quotas = quotas
        self._member = member

    @property
    def counted(self) -> Counted:
        return self._quotas.counted

    def take_message(self, user: str, wanted: Counted, topic: bytes, size_bytes: int, then: MessageTaken) -> None:
        then(*self._quotas.take_message(user, wanted, topic, size_bytes))

    def take_subscriptions(
        self, user: str, client_id: str, topic_filters: Sequence[str], live: int | None, then: SubscriptionsTaken
    ) -> None:
        then(*self._quotas.take_subscriptions(self._member, user, client_id, topic_filters, live))

    def tell_live(self, user: str, number: int) -> None:
        self._quotas.unlogged.tell_live(self._member, user, number)


class GatewayPace:
    """Owner of who is behind, in a store."""

    def __init__(self, owner: MemberOwner) -> None:
        self._owner = owner
        self._behind: set[Member] = set()

    @property
    def is_slow(self) -> bool:
        """True if some gateway lags."""
        return bool(self._behind)

    def heard(self, member: Member, is_behind: bool) -> None:
        """A gateway says whether it is behind; one that has left is not."""
        was_slow = self.is_slow
        if is_behind:
            self._behind.add(member)
        else:
            self._behind.discard(member)
        if self.is_slow != was_slow:
            self._owner.tell_gateways(Slow(self.is_slow))
