"""A large request of a peer: copied and checked in some turns of the loop, stored in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from msgspec.structs import replace

from lightqueue.message_store import MessageStore
from notify.requests.contents import ContentLimits, Fenced, add_held_by, add_records
from store.records._records import RecordBatch
from store.state.changes import Change, GroupAdvanced, SessionClosed, SessionOpened
from store.wire.messages import Role

CLOCKS_DIFFER_S = 60

Begun = tuple[RecordBatch, list[Change]]


def begun(records: memoryview, role: Role, limits: ContentLimits, holder: str = "") -> Begun:
    """A batch that begins with a peer's records as one group, and the state changes among them. Raises ValueError.

    `holder`: of the sessions that a gateway opens; empty: they have the one that the records say.
    """
    batch = RecordBatch()
    batch.begin_atomic()
    return batch, _added(batch, records, role, limits, holder)


def in_time(changes: list[Change], is_others: Callable[[str], bool]) -> tuple[list[Change], set[str]]:
    """A gateway's changes without the ends of sessions that others have by now, which are no fault; and whose those
    are. Raises Fenced for another change of such a session."""
    named = {change.client_id for change in changes if not isinstance(change, GroupAdvanced)}  # type: ignore[attr-defined]
    others = {client_id for client_id in named if is_others(client_id)}
    if not others:
        return changes, others
    found: list[Change] = []
    late: set[str] = set()
    for change in changes:
        if isinstance(change, GroupAdvanced) or change.client_id not in others:  # type: ignore[attr-defined]
            found.append(change)
        elif isinstance(change, SessionClosed):
            late.add(change.client_id)
        else:
            raise Fenced(change.client_id)  # type: ignore[attr-defined]
    return found, late


def limits_of(messages: MessageStore, role: Role | None, size_bytes: int) -> ContentLimits:
    """Of a peer's records. Its idea of what time it is may be somewhat different."""
    settings = messages.settings
    latest_due_ms = messages.now_ms() + 1_000 * (settings.max_delay_s + CLOCKS_DIFFER_S)
    return ContentLimits(size_bytes, latest_due_ms, settings.max_plain_bytes, role is Role.GATEWAY)


def _added(batch: RecordBatch, records: memoryview, role: Role, limits: ContentLimits, holder: str) -> list[Change]:
    """Add a piece of a peer's records. Returns the state changes among them. Raises ValueError."""
    if role is not Role.GATEWAY or not holder:
        return add_records(batch, records, role, limits)
    changes = add_records(RecordBatch(), records, role, limits)
    add_held_by(batch, records, holder, ())
    return [replace(each, holder=holder) if isinstance(each, SessionOpened) else each for each in changes]


class Prepared:
    """Owner of what the next Publish or Append of a peer stores, if that was prepared; or of the fault in it."""

    def __init__(self) -> None:
        self._made: tuple[memoryview, Begun | ValueError] | None = None

    def make(
        self, records: memoryview, cuts: list[int], role: Role, limits: ContentLimits, holder: str
    ) -> Iterator[None]:
        """Copy and check the pieces of records between `cuts` (positions in bytes, ascending), one in each step.

        `holder`: of the sessions that a gateway opens.
        """
        places = [*cuts, len(records)]
        try:
            batch, changes = begun(records[: places[0]], role, limits, holder)
            for start, end in pairwise(places):
                yield
                changes += _added(batch, records[start:end], role, limits, holder)
        except ValueError as error:
            self._made = records, error
        else:
            self._made = records, (batch, changes)
        yield

    def take(self, records: memoryview) -> Begun | None:
        """The pack that was made of these very records; it can be taken once. Raises ValueError, the fault that was
        found.
        """
        made, self._made = self._made, None
        if made is None or made[0] is not records:
            return None
        if isinstance(made[1], ValueError):
            raise made[1]
        return made[1]

    def clear(self) -> None:
        self._made = None
