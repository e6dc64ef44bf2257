"""Messages that were stored compressed, as MQTT clients get them: decompressed once for all who read a range."""

from __future__ import annotations

import logging

from store._records import Records, expanded
from store.compression import BadFrame, NoLibrary, plain
from store.ratelimit import RateLimitedLog

EXPANDED_BYTES = 1 << 20  # of payloads that are decompressed at a time: one message, if it alone has more

_log = RateLimitedLog(logging.getLogger(__name__))


def as_published(records: Records, start: int = 0, count: int = -1) -> Records:
    """The same messages with their payloads as they were published; `records` itself where that is so anyway.

    The range may end early. A payload that cannot be decompressed stays: it is dropped where it would be sent.
    """
    return expanded(records, _payload, EXPANDED_BYTES, start, count)


def _payload(frame: bytes) -> bytes | None:
    try:
        return plain(frame)
    except (BadFrame, NoLibrary) as error:
        _log.error("unreadable_payload", "a compressed payload cannot be delivered: %s", error)
        return None
