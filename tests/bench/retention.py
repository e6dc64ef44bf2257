"""How long retention keeps the loop: the longest steps of a store with full-sized segments, by what they did.

python -m tests.bench.retention [--segments 4] [--segment-bytes 268435456] [--topics 1000] [--data DIR]: in CPU and in
wall-clock time, ms. What stands in a step's line is the code that it came to.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from lightqueue.message_store import MessageStore
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.settings import StoreSettings
from tests.support.stores import commit_log

BATCH = 1_000
SHOWN = 6


def fill(store: MessageStore, until_bytes: int, topics: int, payload_bytes: int) -> None:
    number = 0
    names = [b"plant/%d/x" % i for i in range(topics)]
    while store.end < until_bytes:
        batch = RecordBatch()
        for _ in range(BATCH):
            batch.append(RecordType.MESSAGE, bytes(payload_bytes), topic=names[number % topics])
            number += 1
        store.append(batch)
        store.tick()
    store.write_index()
    commit_log(store).flusher.flush_now()


def run_retention(store: MessageStore) -> dict[str, list[tuple[float, float]]]:
    """(wall ms, CPU ms) of each step, by the part of the pass."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    while True:
        names = [_line(each) for each in (store.upkeep._dropping, store.upkeep._trimming)]
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        store.upkeep.step(time.monotonic())
        took = (time.perf_counter() - wall_s) * 1000, (time.thread_time() - cpu_s) * 1000
        found[next((name for name in names if name), "begin")].append(took)
        store._state.write_some(store.end)
        if not store.upkeep.busy and store.log.base:
            return found
        time.sleep(0.001)


def _line(steps: object) -> str:
    """The innermost line at which a pass goes on."""
    text = ""
    while steps is not None and getattr(steps, "gi_frame", None) is not None:
        frame = steps.gi_frame  # type: ignore[attr-defined]
        text = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        steps = steps.gi_yieldfrom  # type: ignore[attr-defined]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--segment-bytes", type=int, default=256 << 20)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--payload-bytes", type=int, default=1_000)
    parser.add_argument("--data", type=Path, default=None)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.data))
    settings = StoreSettings(data=folder / "data", flush="async", segment_bytes=arguments.segment_bytes)
    try:
        store = MessageStore(settings)
        fill(store, arguments.segments * arguments.segment_bytes, arguments.topics, arguments.payload_bytes)
        store.close()
        store = MessageStore(replace(settings, retention_bytes=arguments.segment_bytes, retention_check_s=1))
        found = run_retention(store)
        store.close()
    finally:
        shutil.rmtree(folder)
    longest = sorted(found, key=lambda name: max(found[name]), reverse=True)
    for name in longest[:SHOWN]:
        wall_ms, cpu_ms = (max(each) for each in zip(*found[name], strict=True))
        print(f"{wall_ms:8.2f} ms  {cpu_ms:8.2f} ms of CPU  {len(found[name]):6} steps  {name}")


if __name__ == "__main__":
    main()
