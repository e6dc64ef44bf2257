"""The cold tier's table in a folder: MB of log a second and core, bytes a message, memory, and how long a commit takes.

    python -m tests.bench.tier [FOLDER]

Telemetry of 100 bytes, half of it random digits, each message from another device at random. One row for each number of
devices, each in a process of its own; time is that of the processor, as the disk's differs.
"""

import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock.tier.objects import ObjectFolder
from penstock.tier.table import TierTable, WrittenLog
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.tier.logs import FIRST, NOON_MS, START, stamped

DEVICES = (100, 10_000, 1_000_000)
BATCHES, BATCH, COMMITS = 100, 10_000, 3
MB = 1_000_000


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
            topic=b"fleet/site-%02d/dev-%07d/telemetry" % (device % 20, device),
            client_id=b"dev-%07d" % device,
            flags=1,
        )
    return batch


def measure(folder: Path, devices: int) -> str:
    objects = ObjectFolder(str(folder))
    table = TierTable.open(objects, WrittenLog(FIRST, START, 1 << 50))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    at, cpu_s, written_bytes, commits_ms = START, 0.0, 0, []
    for number in range(COMMITS):
        writer = table.begin()
        for part in range(BATCHES):
            data = stamped(telemetry(number * BATCHES + part, devices), at, NOON_MS + number * 30_000 + part * 300)
            began_s = time.process_time()
            writer.add(data, at)
            cpu_s += time.process_time() - began_s
            at += len(data)
        began_s = time.process_time()
        written = writer.finish()
        began_commit_s = time.monotonic()
        table.commit(written)
        commits_ms.append((time.monotonic() - began_commit_s) * 1000)
        cpu_s += time.process_time() - began_s
        written_bytes += sum(file.size_bytes for file in written.files)
    messages = COMMITS * BATCHES * BATCH
    index_bytes = sum(path.stat().st_size for path in (folder / "_penstock/index").iterdir())
    more_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    return (
        f"{devices:>9,} devices: {at / MB / cpu_s:4.0f} MB/s, {written_bytes / messages:4.1f} + "
        f"{index_bytes / messages:.2f} bytes a message of {at / messages:.0f} in the log, "
        f"{more_kb / 1024:.0f} MB more memory, {statistics.median(commits_ms):.0f} ms a commit"
    )


def main() -> None:
    if len(sys.argv) > 2:
        print(measure(Path(sys.argv[1]), int(sys.argv[2])), flush=True)
        return
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for devices in DEVICES:
            command = [sys.executable, "-m", "tests.bench.tier", os.path.join(folder, str(devices)), str(devices)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
