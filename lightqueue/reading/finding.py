"""Finds messages by their key, newest first."""

from __future__ import annotations

from typing import NamedTuple

from lightqueue.message_store import MessageStore
from lightqueue.reading.following import time_ms
from store.records.records import Attribute, Record, decode_attributes
from store.topics import matches

MOST_LOOKED_AT = 500  # places in one call
LATEST_MS = 1 << 62


class FindQuery(NamedTuple):
    """A search: a key, a topic or filter (empty: any), and the range of store times, since <= time < until, in ms."""

    key: bytes
    topic_filter: str
    since_ms: int
    until_ms: int

    @classmethod
    def parse(cls, key: str, topic_filter: str, since: str, until: str) -> FindQuery:
        """Times are `earliest`, `now`, `-1h` or RFC 3339. Raises NoSuchPosition."""
        since_ms = 0 if since == "earliest" else time_ms(since)
        return cls(key.encode(), topic_filter, since_ms, LATEST_MS if until == "now" else time_ms(until))

    def fits(self, record: Record) -> bool:
        """Whether a record matches: the hash that led here may be that of another key."""
        if not self.since_ms <= record.timestamp_ms < self.until_ms:
            return False
        if decode_attributes(record.attributes).get(Attribute.KEY) != self.key:
            return False
        return not self.topic_filter or matches(self.topic_filter, record.topic.decode())


class FoundMessages(NamedTuple):
    """log_offsets of messages, newest first, and the log_offset before which to go on (0: no more)."""

    log_offsets: list[int]
    before: int


def find(store: MessageStore, wanted: FindQuery, before: int, limit: int, first: int = 0) -> FoundMessages:
    """Find messages at log_offset `first` or after it. Reads at most MOST_LOOKED_AT records. Raises a StoreError."""
    before = min(before, store.end, store.log.behind_time(wanted.until_ms))
    found: list[int] = []
    for looked_at, log_offset in enumerate(store.keys.candidates(wanted.key, before)):
        if looked_at == MOST_LOOKED_AT or len(found) == limit:
            return FoundMessages(found, log_offset + 1)
        if log_offset < max(first, store.log.first):
            break
        try:
            record = store.record(log_offset)
        except LookupError:
            continue
        if record.timestamp_ms < wanted.since_ms:
            break
        if wanted.fits(record):
            found.append(log_offset)
    return FoundMessages(found, 0)
