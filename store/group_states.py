"""What the log says of consumer groups: a projection of it. Who deals messages out begins with this (store.groups)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from store.changes import Change, GroupAdvanced, GroupDropped, GroupMade, GroupReset
from store.group_settings import GroupSettings
from store.groups import Entry
from store.index import Index
from store.offset_ranges import in_ranges

KEY_PREFIX = b"g"
KEY_END = b"h"

GroupKey = tuple[str, str]  # name, topic_filter


class Maker(NamedTuple):
    """Who makes a group, see store.changes.GroupMade."""

    user: str | None = None
    is_shared: bool = False


class GroupState(msgspec.Struct):
    """One group: all before the `positions` of its partitions is done with, but for `entries`, by queue_offset."""

    name: str
    topic_filter: str
    settings: GroupSettings
    positions: list[int]
    entries: dict[int, Entry] = {}
    dead_letters: int = 0
    user: str | None = None  # who made it; see store.changes.GroupMade
    is_shared: bool = False

    @property
    def key(self) -> GroupKey:
        return self.name, self.topic_filter


class GroupStates:
    """Owner of all GroupState. `hold` and `release` are told which filters are held, as by Sessions."""

    def __init__(self, index: Index, hold: Callable[[str, int], None], release: Callable[[str], None]) -> None:
        self._index = index
        self._hold = hold
        self._release = release
        self._dirty: set[GroupKey] = set()
        self._states: dict[GroupKey, GroupState] = {}
        decode = msgspec.msgpack.Decoder(GroupState).decode
        self._encode = msgspec.msgpack.Encoder().encode
        for _, value in index.scan(KEY_PREFIX, KEY_END):
            state = decode(value)
            self._states[state.key] = state
            hold(state.topic_filter, 0)  # its queue is there and knows where it began

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[GroupState]:
        return iter(self._states.values())

    def get(self, key: GroupKey) -> GroupState | None:
        return self._states.get(key)

    def apply(self, change: Change, log_offset: int) -> None:
        """Apply one change that stands in the log at `log_offset`."""
        assert isinstance(change, GroupMade | GroupAdvanced | GroupReset | GroupDropped)
        key = (change.name, change.topic_filter)
        self._dirty.add(key)
        state = self._states.get(key)
        match change:
            case GroupMade() if state is None:
                positions = [change.queue_offset] * change.settings.lanes
                state = GroupState(change.name, change.topic_filter, change.settings, positions)
                state.user, state.is_shared = change.user, change.is_shared
                self._states[key] = state
                self._hold(change.topic_filter, log_offset)
            case GroupMade() if state is not None:
                state.settings = change.settings
                state.is_shared = state.is_shared and change.is_shared
            case GroupAdvanced() if state is not None:
                _advance(state, change)
            case GroupReset() if state is not None:
                state.positions = [change.queue_offset] * state.settings.lanes
                state.entries.clear()
            case GroupDropped() if state is not None:
                del self._states[key]
                self._release(change.topic_filter)

    def stage(self) -> None:
        """Hand what changed to the index, for its next write; once that succeeded, written() is to be called."""
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


def _advance(state: GroupState, change: GroupAdvanced) -> None:
    for held in change.held:
        entry = (held.due_ms, held.deliveries, held.serial, held.partition)
        state.entries.update(dict.fromkeys(in_ranges(held.ranges), entry))
    for offset in in_ranges(change.done):
        state.entries.pop(offset, None)
    for partition, position in change.positions:
        state.positions[partition] = position
    state.dead_letters += change.dead
