"""A large request of a peer: copied and checked in some turns of the loop, stored in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from lightqueue.message_store import MessageStore
from notify.requests.contents import ContentLimits, add_records
from notify.requests.refusals import Fenced
from store.records._records import RecordBatch
from store.state.changes import Change, GroupAdvanced, SessionClosed
from store.wire.messages import Role

CLOCKS_DIFFER_S = 60

Begun = tuple[RecordBatch, list[Change]]


def begun(records: memoryview, role: Role, limits: ContentLimits) -> Begun:
    """A batch that begins with a peer's records as one group, and the state changes among them. Raises ValueError."""
    batch = RecordBatch()
    batch.begin_atomic()
    return batch, add_records(batch, records, role, limits)


def in_time(changes: list[Change], is_others: Callable[[str], bool]) -> tuple[list[Change], set[str]]:
    """A gateway's changes without the ends of sessions that others have by now, which are no fault; and whose those
    are. Raises Fenced for another change of such a session."""
    found: list[Change] = []
    late: set[str] = set()
    for change in changes:
        if isinstance(change, GroupAdvanced) or not is_others(change.client_id):  # type: ignore[attr-defined]
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


class Prepared:
    """Owner of what the next Publish or Append of a peer stores, if that was prepared; or of the fault in it."""

    def __init__(self) -> None:
        self._made: tuple[memoryview, Begun | ValueError] | None = None

    def make(self, records: memoryview, cuts: list[int], role: Role, limits: ContentLimits) -> Iterator[None]:
        """Copy and check the pieces of records between `cuts` (positions in bytes, ascending), one in each step."""
        places = [*cuts, len(records)]
        try:
            batch, changes = begun(records[: places[0]], role, limits)
            for start, end in pairwise(places):
                yield
                changes += add_records(batch, records[start:end], role, limits)
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
