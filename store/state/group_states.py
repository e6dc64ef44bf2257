"""The state of consumer groups as the log has it: a projection. store/state/groups.py begins with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from store.log.index import Index
from store.state.changes import Change, GroupAdvanced, GroupDropped, GroupMade, GroupOffsetReset
from store.state.filter_holds import FilterHolds
from store.state.group_leases import Entry
from store.state.group_numbers import Numbers
from store.state.group_settings import GroupSettings, logged_tags
from store.state.offset_ranges import in_ranges

KEY_PREFIX = b"g"
KEY_END = b"h"

GroupKey = tuple[str, str]  # name, topic_filter


class Maker(NamedTuple):
    """The maker of a group, see store.state.changes.GroupMade."""

    user: str | None = None
    is_shared: bool = False


class GroupState(msgspec.Struct):
    """One group: all before the `positions` of its partitions is done with, but for `entries`, by queue_offset.

    With priorities each has a position: all before it that has this priority is done with.
    """

    name: str
    topic_filter: str
    settings: GroupSettings
    positions: list[int]
    entries: dict[int, Entry] = {}
    dead_letters: int = 0
    user: str | None = None  # who made it; see store.state.changes.GroupMade
    is_shared: bool = False
    numbers: Numbers | None = None  # while records of it, or messages, are lost that lie before the newest one
    paused: bool = False  # it deals nothing
    began: int = 0  # log_offset at which it was made or last reset, or ended when a part of it was lost
    is_careful: bool = False  # what it holds is not known: it goes on after what is surely done with
    start: int | None = None  # queue_offset at which it was made or last reset; None: an older store did not note it
    was_reset: bool = False  # since it was made
    tag: str = ""  # which messages it has, and with which priorities; see tags_of()

    @property
    def key(self) -> GroupKey:
        return self.name, self.topic_filter

    @property
    def acked(self) -> int:
        """All before this queue_offset is done with."""
        return min((*self.entries, *self.positions))


class GroupStates:
    """Owner of all GroupState."""

    def __init__(self, index: Index, holds: FilterHolds) -> None:
        self._index = index
        self._hold, self._release, self._end_of = holds.hold, holds.release, holds.end_of
        self.has_gaps = False
        """Whether records may be lost, so that a group may be there that was never made."""
        self._dirty: set[GroupKey] = set()
        self._states: dict[GroupKey, GroupState] = {}
        decode = msgspec.msgpack.Decoder(GroupState).decode
        self._encode = msgspec.msgpack.Encoder().encode
        for _, value in index.scan(KEY_PREFIX, KEY_END):
            state = decode(value)
            self._states[state.key] = state
            holds.hold(state.topic_filter, 0)  # its queue is there and knows where it began

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[GroupState]:
        return iter(self._states.values())

    def get(self, key: GroupKey) -> GroupState | None:
        return self._states.get(key)

    def cross_gap(self, is_known: bool) -> list[GroupKey]:
        """Records are lost. `is_known`: of groups none is, and they are what the log after the gap makes of them.

        Returns those that may deliver again what was done with.
        """
        self.has_gaps = True
        for key, state in self._states.items():
            self._dirty.add(key)
            end = self._end_of(state.topic_filter)
            if state.numbers is None:
                state.numbers = Numbers(end, end)
            else:
                state.numbers.cross(end)
            if is_known and state.acked > state.numbers.first_gap:
                _go_back(state, state.numbers.first_gap)
            state.is_careful = True
        return list(self._states)

    def all_applied(self, log_end: int) -> None:
        """All of the log is applied: what is written from now on uses the numbers that the queues have now."""
        for key, state in self._states.items():
            if state.numbers is not None or self.has_gaps:
                state.numbers, state.is_careful, state.began, state.start = None, False, log_end, None
                self._dirty.add(key)
            end = self._end_of(state.topic_filter)
            if any(position > end for position in state.positions):
                state.positions = [min(position, end) for position in state.positions]
                state.began, state.start = log_end, None
                self._dirty.add(key)

    def apply(self, change: Change, log_offset: int) -> None:
        """Apply one change that stands in the log at `log_offset`."""
        assert isinstance(change, GroupMade | GroupAdvanced | GroupOffsetReset | GroupDropped)
        key = (change.name, change.topic_filter)
        self._dirty.add(key)
        state = self._states.get(key)
        match change:
            case GroupMade() if state is None or (change.end >= 0 and state.numbers is not None):
                self._make(change, log_offset, state)
            case GroupMade() if state is not None:
                state.settings = msgspec.structs.replace(change.settings, partitions=state.settings.partitions)
                state.is_shared = state.is_shared and change.is_shared
                state.paused = change.paused
                state.tag = change.tag
            case GroupAdvanced() if state is None and self.has_gaps and change.end >= 0:
                self._find(change, log_offset)
            case GroupAdvanced() if state is not None:
                self._advance(state, change)
            case GroupOffsetReset() if state is not None:
                state.began, state.start, state.was_reset = log_offset, change.queue_offset, True
                state.is_careful = not self._is_sure(state, change.end, change.queue_offset)
                _go_back(state, self._lowest(state, change.queue_offset))
            case GroupDropped() if state is not None:
                del self._states[key]
                self._release(change.topic_filter)

    def _make(self, change: GroupMade, log_offset: int, before: GroupState | None) -> None:
        """`before`: one whose end is lost."""
        positions = [change.queue_offset] * max(change.settings.cursors, len(logged_tags(change.tag)))
        state = GroupState(change.name, change.topic_filter, change.settings, positions)
        state.user, state.is_shared, state.paused = change.user, change.is_shared, change.paused
        state.tag = change.tag
        state.began, state.start = log_offset, change.queue_offset
        self._states[state.key] = state
        if before is None:
            self._hold(change.topic_filter, log_offset)
        if self.has_gaps and change.end >= 0:
            end = self._end_of(change.topic_filter)
            state.numbers = before.numbers if before is not None else Numbers(0, end)
            state.is_careful = not self._is_sure(state, change.end, change.queue_offset)
            _go_back(state, self._lowest(state, change.queue_offset))

    def _find(self, change: GroupAdvanced, log_offset: int) -> None:
        """A group whose making is lost. Its settings are the defaults until a consumer says others."""
        settings = GroupSettings(partitions=change.partitions)
        positions = [0] * settings.cursors
        state = GroupState(change.name, change.topic_filter, settings, positions, began=log_offset, is_careful=True)
        self._states[state.key] = state
        self._hold(change.topic_filter, log_offset)
        state.numbers = Numbers(0, self._end_of(change.topic_filter))
        self._advance(state, change)

    def _advance(self, state: GroupState, change: GroupAdvanced) -> None:
        if any(partition >= len(state.positions) for partition, _ in change.positions):  # it was made anew
            state.settings = msgspec.structs.replace(state.settings, partitions=change.partitions)
            state.positions = [state.acked] * max(state.settings.cursors, 1 + max(change.positions)[0])
            state.is_careful = True
        state.dead_letters += change.dead
        if state.numbers is None and not state.is_careful:
            _advance(state, change)
            return
        is_sure = self._is_sure(state, change.end, change.acked)
        if state.is_careful and change.acked < 0:
            return
        if not state.is_careful and (is_sure or change.end < 0):
            _advance(state, change, state.numbers)
            return
        _go_back(state, self._lowest(state, change.acked))
        # Nothing is held in front of where it goes on, and of that it is known where it is.
        is_all_done = change.acked == change.end
        is_one_lane = change.positions == ((0, change.acked),) and len(state.positions) == 1
        state.is_careful = not (is_sure and (is_all_done or is_one_lane))

    def _is_sure(self, state: GroupState, said_end: int, queue_offset: int) -> bool:
        """True if the place of a message that a record names is known; `said_end`: the record's GroupAdvanced.end."""
        if state.numbers is None:
            return True
        if said_end >= 0:
            state.numbers.learn(said_end, self._end_of(state.topic_filter))
        return state.numbers.is_sure(queue_offset)

    def _lowest(self, state: GroupState, queue_offset: int) -> int:
        return state.numbers.lowest(queue_offset) if state.numbers is not None else queue_offset

    def stage(self) -> None:
        """Give what changed to the index, for its next write; once that has succeeded, call written()."""
        for key in self._dirty:
            state = self._states.get(key)
            if state is None:
                self._index.delete(index_key(key))
            else:
                self._index.put(index_key(key), self._encode(state))

    def written(self) -> None:
        self._dirty.clear()


def index_key(key: GroupKey) -> bytes:
    """The key of a group in RocksDB. A name has no zero byte."""
    return KEY_PREFIX + key[0].encode() + b"\0" + key[1].encode()


def _go_back(state: GroupState, queue_offset: int) -> None:
    state.positions = [queue_offset] * len(state.positions)
    state.entries = {}


def _advance(state: GroupState, change: GroupAdvanced, numbers: Numbers | None = None) -> None:
    """`numbers`: what the record calls messages; those of which it is not sure which they are stay as they were."""

    def places(ranges: tuple[int, ...]) -> Iterator[int]:
        offsets = in_ranges(ranges)
        if numbers is None:
            return offsets
        return (numbers.lowest(offset) for offset in offsets if numbers.is_sure(offset))

    for held in change.held:
        entry = (held.due_ms, held.deliveries, held.serial, held.partition)
        state.entries.update(dict.fromkeys(places(held.ranges), entry))
    for offset in places(change.done):
        state.entries.pop(offset, None)
    for partition, position in change.positions:
        state.positions[partition] = position if numbers is None else numbers.lowest(position)
