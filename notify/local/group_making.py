"""Consumer groups as they are made and given up: where one begins, whether its user may have it, when nobody has it."""

from __future__ import annotations

import logging
import math
from itertools import islice

from lightqueue.groups.groups import Groups
from lightqueue.message_store import MessageStore
from lightqueue.reading.following import locate, time_ms
from lightqueue.reading.replay import ScanQuery, scan
from notify.errors import GroupQuota, GroupRefused
from notify.local.group_tier import PLACE
from notify.local.user_quotas import QuotaLimits
from store.namespaces import namespace_of
from store.ratelimit import RateLimitedLog
from store.state.group_settings import LATEST
from store.state.group_states import GroupKey, Maker

LOOK_BYTES = 64 << 10  # of the log, that are looked at for a message that the queue lacks: some 0.3 ms
FROM_NOW = "a group over %s begins now: only topics and level/# have queues of what was stored before; read() has it"
UNUSED_S = 5.0  # a group that was unused so long ago, and is now, is dropped
MOST_DROPPED = 100  # at a time
SHARED = "$share/{}/{}"
_events = RateLimitedLog(logging.getLogger("penstock.store"))


class NoHistory(GroupRefused):
    """A group would begin with messages that the queue of its filter does not have."""

    def __init__(self, topic_filter: str, start: str) -> None:
        shown = namespace_of(topic_filter).plain_topic(topic_filter)
        super().__init__(
            f"start={start!r}: no queue has what was stored before of {shown}, only a topic and LEVEL/# have one "
            "that is whole; let the group begin with what comes (start='now'), or read the history without a group"
        )


def beginning(messages: MessageStore, topic_filter: str, start: str, or_refuse: bool, is_in_tier: bool = False) -> int:
    """queue_offset at which a group over a filter begins. Raises NoSuchPosition, or another StoreError, for any filter.

    `or_refuse`: raises NoHistory where the filter's queue lacks messages from `start` on; else the group begins with
    those that the queue has. `is_in_tier`: the tier may have what the queue has no more.
    """
    queue = messages.queues.stored(topic_filter)
    if start == LATEST:
        return queue.next_offset if queue is not None else 0
    if or_refuse and _lacks(messages, topic_filter, start):
        raise NoHistory(topic_filter, start)
    if queue is not None and is_in_tier and (start == "earliest" or (PLACE.fullmatch(start) and start[0] != "=")):
        return 0 if start == "earliest" else min(int(start.lstrip("@")), queue.next_offset)
    if queue is not None:
        return locate(messages, topic_filter, start)
    if start not in ("earliest", "now") and not PLACE.fullmatch(start):
        time_ms(start)  # it says what is no place
    if messages.log.end > messages.log.first:  # it begins to be kept now
        _events.warning("group", FROM_NOW, topic_filter)
    return 0


def _lacks(messages: MessageStore, topic_filter: str, start: str) -> bool:
    """Whether a filter's queue may lack messages from `start` on, since it began after they were stored."""
    log, kept_since = messages.log, messages.queues.kept_since(topic_filter)
    if kept_since is None:
        kept_since = messages.end
    elif PLACE.fullmatch(start) or (start != "earliest" and _stored_at(messages, kept_since) <= time_ms(start)):
        return False
    if kept_since <= log.first:
        return False
    looked_at = min(kept_since, log.first + LOOK_BYTES)
    found = scan(messages, ScanQuery(topic_filter, log.first, looked_at), 1, LOOK_BYTES)
    return found.number > 0 or found.next < kept_since


def _stored_at(messages: MessageStore, log_offset: int) -> float:
    """Unix time in ms of a record; infinity if it is lost, 0 if retention dropped it."""
    try:
        return messages.log.timestamp_ms(log_offset) if log_offset >= messages.log.first else 0
    except LookupError:
        return math.inf


class GroupLimits:
    """Owner of the counts of groups that were refused since a user, or a namespace, has as many as it may have."""

    def __init__(self, groups: Groups, quotas: QuotaLimits) -> None:
        self.refused = {"groups": 0, "namespace_groups": 0}
        self._groups = groups
        self._quotas = quotas

    def check(self, group: GroupKey, maker: Maker) -> None:
        """Whether a user may make one more group. Raises GroupQuota."""
        if maker.user is not None and self._quotas.user_groups:
            used = self._groups.count_of(maker.user)
            if used >= self._quotas.user_groups:
                self.refused["groups"] += 1
                raise GroupQuota(maker.user, used)
        namespace = namespace_of(group[0])
        if self._quotas.namespace_groups and (namespace.name or self._quotas.bounds_default):
            used = sum(namespace.has_group(each.state.key[0]) for each in self._groups)
            if used >= self._quotas.namespace_groups:
                self.refused["namespace_groups"] += 1
                raise GroupQuota("", used, namespace.name)


class UnusedGroups:
    """Owner of which groups of shared subscriptions nobody had when they were looked at last."""

    def __init__(self, messages: MessageStore) -> None:
        self._messages = messages
        self._unused: set[GroupKey] = set()
        self._look_s = 0.0

    def collect(self, now_s: float) -> list[GroupKey]:
        """Groups that no session has, online or not, and that hold nothing; so it was UNUSED_S ago. To be dropped."""
        if now_s < self._look_s:
            return []
        self._look_s = now_s + UNUSED_S
        shares = self._messages.sessions.shares
        unused = {
            each.state.key
            for each in self._messages.groups
            if each.state.is_shared and each.is_unused and SHARED.format(*each.state.key) not in shares
        }
        found = list(islice(unused & self._unused, MOST_DROPPED))
        self._unused = unused
        return found
