"""The consumer groups of a store: their making and their end, and when their changes are written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from lightqueue.groups.group_queue import Append, GroupQueue
from lightqueue.groups.queue_reads import QueueInTier
from lightqueue.queues.table import QueueTable
from store.errors import StoreError
from store.log.api import Log
from store.ratelimit import RateLimitedLog
from store.records._records import RecordBatch
from store.state.changes import GroupDropped, GroupMade, GroupOffsetReset, encode_change
from store.state.group_settings import GroupSettings
from store.state.group_states import GroupKey, GroupState, GroupStates, Maker

log = logging.getLogger("penstock.store")

MOST_GROUPS = 1_024

NO_MAKER = Maker()


class TooManyGroups(StoreError):
    """A refusal to make a group: there are as many groups as the settings allow."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_GROUPS} groups are there already; drop some with `penstock group drop`")


class GroupHistory(Protocol):
    """The source of messages that groups are to read and that the log no longer has."""

    def queue_in_tier(self, queue: GroupQueue) -> QueueInTier | None:
        """None: there is nothing of it."""


class Groups:
    """Owner of the groups of a store."""

    def __init__(
        self, log_: Log, queues: QueueTable, states: GroupStates, append: Append, flush_ms: int, epoch: int = 0
    ) -> None:
        """`epoch`: in which this store began to lead its cluster; 0: it has none."""
        self.log = log_
        self.epoch = epoch
        self.queues = queues
        self.append = append
        self.flush_ms = flush_ms
        self.most_bytes = 1 << 62  # of a message that can be handed out; set by the owner of the wire
        self._history: GroupHistory | None = None
        self._states = states
        self._events = RateLimitedLog(log)
        self._groups = {state.key: GroupQueue(self, state) for state in states}

    def read_history(self, history: GroupHistory) -> None:
        """Set the history in which groups read what the log no longer has."""
        self._history = history

    def tier_of(self, group: GroupQueue) -> QueueInTier | None:
        """What a tier has of a group's queue; None: nothing."""
        return self._history.queue_in_tier(group) if self._history is not None else None

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[GroupQueue]:
        return iter(self._groups.values())

    def get(self, key: GroupKey) -> GroupQueue | None:
        return self._groups.get(key)

    def count_of(self, user: str) -> int:
        """The number of groups that a user has made and the store has."""
        return sum(each.state.user == user for each in self)

    def make(
        self,
        key: GroupKey,
        settings: GroupSettings | None,
        begin: Callable[[], int],
        maker: Maker = NO_MAKER,
        tag: str = "",
    ) -> GroupQueue:
        """The group of this name over this filter, made if it is not there; what it holds is kept from now on.

        A new one begins at the queue_offset that `begin` says. `settings`: None for those it has; the number of
        partitions stays. `tag`: of a new one; see tags_of(). Raises a StoreError.
        """
        found = self._groups.get(key)
        assert found is None or settings is None or settings.partitions == found.settings.partitions
        is_to_stay = found is not None and found.state.is_shared and not maker.is_shared
        if found is not None and settings in (None, found.settings) and not is_to_stay:
            return found
        if found is None and len(self._groups) >= MOST_GROUPS:
            raise TooManyGroups
        settings = settings or (found.settings if found is not None else GroupSettings())
        paused = found is not None and found.state.paused
        tag = tag if found is None else found.state.tag
        made = GroupMade(*key, settings, 0, *maker, paused=paused, tag=tag)
        if found is None:
            queue = self.queues.stored(key[1])
            end = queue.next_offset if queue is not None else 0
            made = GroupMade(*key, settings, begin(), *maker, end, tag=tag)
        self._say(made)
        if found is not None:
            found.group.settings = made.settings
            return found
        self._groups[key] = GroupQueue(self, self._state(key))
        return self._groups[key]

    def pause(self, found: GroupQueue, paused: bool) -> None:
        """Deal nothing more, or go on. What consumers have stays theirs. Raises a StoreError."""
        state = found.state
        if state.paused != paused:
            maker = Maker(state.user, state.is_shared)
            self._say(GroupMade(*state.key, found.settings, 0, *maker, paused=paused, tag=state.tag))

    def reset(self, found: GroupQueue, queue_offset: int) -> None:
        """Go on elsewhere. Raises a StoreError."""
        self._say(GroupOffsetReset(*found.state.key, queue_offset, found.queue.next_offset))
        found.rebuild()

    def drop(self, found: GroupQueue) -> None:
        """Forget a group. Its queue goes unless others hold it. Raises a StoreError."""
        self._say(GroupDropped(*found.state.key))
        found.close()
        del self._groups[found.state.key]

    def _say(self, change: GroupMade | GroupOffsetReset | GroupDropped) -> None:
        batch = RecordBatch()
        batch.append(*encode_change(change))
        self.append(batch)

    def _state(self, key: GroupKey) -> GroupState:
        state = self._states.get(key)
        assert state is not None
        return state

    def tick(self, now_ms: int) -> None:
        """Call this several times a second: leases that are over end, and changes that are due are written."""
        for each in self:
            each.group.run(now_ms)
            each.close_what_is_done()
        self.write_due(now_ms)
        self._events.tell_left_out()

    def skipped(self, found: GroupQueue, number: int) -> None:
        """Say that a group never gets some messages."""
        key = found.state.key
        self._events.warning(
            "group", "group %s over %s skips %d messages: retention has dropped them, or they are lost", *key, number
        )

    def write_due(self, now_ms: int, at_once: bool = False) -> None:
        """Write what has waited long enough. What cannot be is tried again after flush_ms."""
        for each in self:
            if each.is_due(now_ms) or at_once:
                self.write(each, now_ms)

    def write(self, found: GroupQueue, now_ms: int) -> None:
        """Write the changes of a group to the log; if that fails, `found.failure` says why."""
        found.failure = None
        try:
            found.write(now_ms)
        except StoreError as error:
            found.failure = error
            self._events.warning("group", "group %s: %s", found.state.name, error)
