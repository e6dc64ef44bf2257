"""Messages that were stored compressed, as MQTT clients get them: decompressed once for all who read a range."""

from __future__ import annotations

import logging

from store._records import Records, expanded
from store.compression import BadFrame, NoLibrary, plain
from store.ratelimit import RateLimitedLog

EXPANDED_BYTES = 1 << 20  # of payloads that are decompressed at a time: one message, if it alone has more

_log = RateLimitedLog(logging.getLogger(__name__))


def as_published(records: Records, most_bytes: int = EXPANDED_BYTES, start: int = 0, count: int = -1) -> Records:
    """The same messages with their payloads as they were published; `records` itself where that is so anyway.

    The range ends early once its payloads have `most_bytes`. A payload that cannot be decompressed stays as it is: the
    message is dropped where it would be sent.
    """
    return expanded(records, _payload, most_bytes, start, count)


def _payload(frame: bytes) -> bytes | None:
    try:
        return plain(frame)
    except (BadFrame, NoLibrary) as error:
        _log.error("unreadable_payload", "a compressed payload cannot be delivered: %s", error)
        return None
