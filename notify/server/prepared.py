"""A large Publish of a client's: copied and checked in one turn of the loop, stored in another."""

from __future__ import annotations

from contextlib import suppress

from lightqueue.message_store import MessageStore
from notify.requests.contents import ContentLimits, add_records
from store.records._records import RecordBatch
from store.state.changes import Change
from store.wire.messages import Role

CLOCKS_DIFFER_S = 60

Begun = tuple[RecordBatch, list[Change]]


def begun(records: memoryview, role: Role, limits: ContentLimits) -> Begun:
    """A batch that begins with a peer's records as one group, and the state changes among them. Raises ValueError."""
    batch = RecordBatch()
    batch.begin_atomic()
    return batch, add_records(batch, records, role, limits)


def limits_of(messages: MessageStore, role: Role | None, size_bytes: int) -> ContentLimits:
    """Of a peer's records. Its idea of what time it is may be somewhat different."""
    settings = messages.settings
    latest_due_ms = messages.now_ms() + 1_000 * (settings.max_delay_s + CLOCKS_DIFFER_S)
    return ContentLimits(size_bytes, latest_due_ms, settings.max_plain_bytes, role is Role.GATEWAY)


class Prepared:
    """Owner of what the next Publish of a peer stores, if that was prepared."""

    def __init__(self) -> None:
        self._made: tuple[memoryview, Begun] | None = None

    def make(self, records: memoryview, limits: ContentLimits) -> None:
        """Faults in them are found when they are stored."""
        with suppress(ValueError):
            self._made = records, begun(records, Role.CLIENT, limits)

    def take(self, records: memoryview) -> Begun | None:
        """The pack that was made of these very records; it can be taken once."""
        made, self._made = self._made, None
        return made[1] if made is not None and made[0] is records else None

    def clear(self) -> None:
        self._made = None
