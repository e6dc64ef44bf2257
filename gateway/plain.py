"""Messages that were stored compressed, as MQTT clients get them: decompressed once for all who read them.

Decompressed records are kept for a while, within a bound, so that readers at different places share one copy.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from store._records import Records, expand_record, expanded
from store.compression import BadFrame, NoLibrary, plain
from store.ratelimit import RateLimitedLog

EXPANDED_BYTES = 1 << 20  # of payloads that are decompressed at a time: one message, if it alone has more
KEPT_BYTES = 16 << 20  # of decompressed records that are kept; the one used last stays in any case

_log = RateLimitedLog(logging.getLogger(__name__))


class Expanded:
    """The records that were decompressed last, by what stands in the log."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self.kept_bytes = 0

    def of(self, record: bytes, frame: bytes) -> bytes | None:
        """The record with its payload as it was published; None if the frame in it cannot be decompressed."""
        whole = self._kept.get(record)
        if whole is not None:
            self._kept.move_to_end(record)
            return whole
        try:
            whole = expand_record(record, plain(frame))
        except (BadFrame, NoLibrary) as error:
            _log.error("unreadable_payload", "a compressed payload cannot be delivered: %s", error)
            return None
        self._kept[record] = whole
        self.kept_bytes += len(record) + len(whole)
        while self.kept_bytes > self._most_bytes and len(self._kept) > 1:
            self.kept_bytes -= sum(map(len, self._kept.popitem(last=False)))
        return whole


_expanded = Expanded()


def as_published(records: Records, most_bytes: int = EXPANDED_BYTES, start: int = 0, count: int = -1) -> Records:
    """The same messages with their payloads as they were published; `records` itself where that is so anyway.

    The range ends early once its payloads have `most_bytes`. A payload that cannot be decompressed stays as it is: the
    message is dropped where it would be sent.
    """
    return expanded(records, _expanded.of, most_bytes, start, count)
