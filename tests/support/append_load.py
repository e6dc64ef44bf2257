"""A store that is appended to without a pause, in a process of its own.

    python -m tests.support.append_load DATA KIND BYTES/S

It prints how much was replayed, and then how much was appended, a line each now and then.
"""

import sys
import time
from pathlib import Path

from lightqueue.message_store import MessageStore
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.state.changes import Progress, SessionOpened, encode_change
from tests.support.stores import small

SETTINGS = {"segment_bytes": 16 << 20, "retention_bytes": 64 << 20, "index_flush_log_bytes": 2 << 20}
SESSIONS = 1_000


def batch(kind: str, number: int) -> RecordBatch:
    """Large messages, messages to topics that are all new, or progress of many sessions."""
    found = RecordBatch()
    if kind == "large":
        found.append(RecordType.MESSAGE, bytes(256 << 10), topic=b"line/%d" % (number % 4))
        return found
    for each in range(200):
        found.append(RecordType.MESSAGE, bytes(1_000), topic=b"line/%d/%d" % (number, each))
        if kind == "sessions":
            found.append(*encode_change(Progress(f"client-{200 * number % SESSIONS + each}", number)))
    return found


def main(data: Path, kind: str, bytes_per_s: int) -> None:
    store = MessageStore(small(data, **SETTINGS))
    print("replayed", store.replayed_bytes, flush=True)
    opened = RecordBatch()
    for number in range(SESSIONS):
        opened.append(*encode_change(SessionOpened(f"client-{number}", False, 3_600)))
    store.append(opened)
    started_s, start, number = time.monotonic(), store.end, 0
    while True:
        number += 1
        store.append(batch(kind, number))
        store.tick()
        if not number % 16:
            print("appended", store.end - start, flush=True)
        time.sleep(max(0.0, (store.end - start) / bytes_per_s - (time.monotonic() - started_s)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
