"""The cold tier's table in a folder: MB of log a second and core, bytes a message, memory, and how long a commit takes;
then what it takes to merge the files of small commits, and to read one topic and all topics before and after.

    python -m tests.bench.tier [FOLDER]

Telemetry of 100 bytes, half of it random digits, each message from another device at random. Two rows for each number
of devices, each in a process of its own; time is that of the processor, as the disk's differs.
"""

import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock.tier.compaction import Compactor
from penstock.tier.files import index_of
from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from penstock.tier.reading import ScanQuestion, TableReader
from penstock.tier.table import TierTable, WrittenLog
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.tier.logs import FIRST, NOON_MS, START, stamped

DEVICES = (100, 10_000, 1_000_000)
BATCH = 10_000
LARGE, SMALL = (3, 100), (16, 30)
"""Commits, and batches in each."""
MB = 1_000_000
TOPIC = "fleet/site-%02d/dev-%07d/telemetry"


def telemetry(seed: int, devices: int) -> RecordBatch:
    chance, batch = random.Random(seed), RecordBatch()
    for number in range(BATCH):
        device = chance.randrange(devices)
        payload = (
            f'{{"device":"dev-{device:07}","temp":{chance.uniform(15, 30):.2f},"hum":{chance.uniform(20, 80):.1f},'
            f'"bat":{chance.uniform(3.2, 4.1):.3f},"ok":true,"seq":{seed * BATCH + number},"unit":"C"}}'
        )
        batch.append(
            RecordType.MESSAGE,
            payload.encode()[:100].ljust(100),
            topic=(TOPIC % (device % 20, device)).encode(),
            client_id=b"dev-%07d" % device,
            flags=1,
        )
    return batch


class Writing:
    """Commits to a table that is new."""

    def __init__(self, folder: Path, devices: int) -> None:
        self.objects = ObjectFolder(str(folder))
        self.table = TierTable.open(self.objects, WrittenLog(FIRST, START, 1 << 50))
        self.cpu_s, self.end = 0.0, START
        self.commits_ms: list[float] = []
        self._devices, self._batches = devices, 0

    def commit(self, batches: int) -> None:
        writer = self.table.begin()
        for _ in range(batches):
            at_ms = NOON_MS + self._batches * 300
            data = stamped(telemetry(self._batches, self._devices), self.end, at_ms)
            began_s = time.process_time()
            writer.add(data, self.end)
            self.cpu_s += time.process_time() - began_s
            self.end += len(data)
            self._batches += 1
        began_s = time.process_time()
        written = writer.finish()
        began_commit_s = time.monotonic()
        self.table.commit(written)
        self.commits_ms.append((time.monotonic() - began_commit_s) * 1000)
        self.cpu_s += time.process_time() - began_s

    def size_bytes(self) -> tuple[int, int]:
        """Of the data files, and of their indexes."""
        files = self.table.files()
        indexes = [len(self.objects.get(index_of(file.path))) for file in files]
        return sum(file.size_bytes for file in files), sum(indexes)


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(folder: Path, devices: int) -> str:
    """Large commits."""
    writing = Writing(folder, devices)
    before_kb = peak_kb()
    commits, batches = LARGE
    for _ in range(commits):
        writing.commit(batches)
    messages = commits * batches * BATCH
    data_bytes, index_bytes = writing.size_bytes()
    return (
        f"{devices:>9,} devices: {writing.end / MB / writing.cpu_s:4.0f} MB/s, {data_bytes / messages:4.1f} + "
        f"{index_bytes / messages:.2f} bytes a message of {writing.end / messages:.0f} in the log, "
        f"{(peak_kb() - before_kb) / 1024:.0f} MB more memory, {statistics.median(writing.commits_ms):.0f} ms a commit"
    )


def measure_merging(folder: Path, devices: int) -> str:
    """Small commits, whose files are merged."""
    writing = Writing(folder, devices)
    commits, batches = SMALL
    for _ in range(commits):
        writing.commit(batches)
    unmerged = folder.with_name("unmerged")
    shutil.copytree(folder, unmerged)
    before_bytes = writing.size_bytes()
    before_kb, began_s, steps_ms = peak_kb(), time.process_time(), []
    compactor = Compactor(writing.objects, writing.table)
    step_s = time.monotonic()
    while compactor.step():
        steps_ms.append((time.monotonic() - step_s) * 1000)
        step_s = time.monotonic()
    cpu_s, more_kb = time.process_time() - began_s, peak_kb() - before_kb
    sizes = [
        f"{what} {one / MB:.1f} to {other / MB:.1f} MB"
        for what, one, other in zip(("data", "index"), before_bytes, writing.size_bytes(), strict=True)
    ]
    before, after = reading_s(ObjectFolder(str(unmerged))), reading_s(writing.objects)
    shutil.rmtree(unmerged)
    times = [
        f"{what} {one:.2f} to {other:.2f} s"
        for what, one, other in zip(("one topic", "100 MB of all"), before, after, strict=True)
    ]
    return (
        f"{'merged':>17}: {writing.end / MB / cpu_s:4.0f} MB/s, {', '.join(sizes + times)}, "
        f"{more_kb / 1024:.0f} MB more memory, {statistics.median(steps_ms):.0f} ms a step, {max(steps_ms):.0f} at most"
    )


def reading_s(objects: ObjectFolder) -> tuple[float, float]:
    """What it takes to read one topic, and so many messages of all topics."""
    found = []
    for topic_filter, most in ((TOPIC % (7, 7), 1 << 40), ("#", 100 * MB)):
        history = TableHistory(objects, 256 << 20)
        history.refresh()
        reader = TableReader(history)
        at, size, began_s = 0, 0, time.process_time()
        while at < history.end and size < most:
            page = reader.scan(ScanQuestion(topic_filter, at, history.end), 1 << 20, 4 << 20)
            at, size = page.next, size + len(page.records)
        found.append(time.process_time() - began_s)
        reader.close()
    return found[0], found[1]


def main() -> None:
    if len(sys.argv) > 2:
        measures = {"large": measure, "merged": measure_merging}
        print(measures[sys.argv[3]](Path(sys.argv[1]), int(sys.argv[2])), flush=True)
        return
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for devices in DEVICES:
            for what in ("large", "merged"):
                command = [sys.executable, "-m", "tests.bench.tier", os.path.join(folder, f"{what}-{devices}")]
                subprocess.run([*command, str(devices), what], check=True)


if __name__ == "__main__":
    main()
