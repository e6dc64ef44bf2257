"""How far a group came, as records of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

from store.state.changes import GroupAdvanced, HeldRange
from store.state.group_states import GroupState

RANGES_PER_RECORD = 500


def advances(
    state: GroupState,
    held: list[HeldRange],
    done: list[int],
    positions: list[tuple[int, int]],
    known: tuple[int, int, int],
) -> Iterator[GroupAdvanced]:
    """One record, or several of bounded size. The positions come last: what they mean depends on what is held.

    `known`: end, acked and partitions of each.
    """
    while len(held) > RANGES_PER_RECORD:
        yield GroupAdvanced(*state.key, (), tuple(held[:RANGES_PER_RECORD]), (), 0, *known)
        del held[:RANGES_PER_RECORD]
    while len(done) > 2 * RANGES_PER_RECORD:
        yield GroupAdvanced(*state.key, (), (), tuple(done[: 2 * RANGES_PER_RECORD]), 0, *known)
        del done[: 2 * RANGES_PER_RECORD]
    yield GroupAdvanced(*state.key, tuple(positions), tuple(held), tuple(done), 0, *known)
