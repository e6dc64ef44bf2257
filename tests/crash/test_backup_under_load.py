"""Backups of a real server under load, some of them killed; what was acknowledged before one is in what is restored."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from lightqueue.mending.checking import check_folder
from store.mending.backup import read_manifest
from store.mending.foresight import foresee
from store.records.records import RecordType, read_records
from tests.conftest import ServerFactory
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

TOPIC = "load/1"
KILLS = 6


class Publisher:
    """A client that publishes at QoS 1 until it is stopped, some at a time; knows what was acknowledged."""

    def __init__(self, server: PenstockServer) -> None:
        self.acknowledged: list[int] = []
        self._sent: dict[int, int] = {}
        self._stopping = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "load")
        self._client.on_publish = lambda _client, _data, mid, *_: self.acknowledged.append(mid)
        self._client.connect("127.0.0.1", server.port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            self._client.publish(TOPIC, b"%07d" % number + b"x" * 2000, 1).wait_for_publish(20)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()


def store_command(*arguments: object) -> subprocess.Popen[bytes]:
    run = [sys.executable, "-m", "penstock", "store", *map(str, arguments)]
    return subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def numbers_in(data: Path) -> dict[int, int]:
    """By log_offset."""
    found = {}
    for _, piece in foresee(data / "log").pieces(0):
        for record in read_records(memoryview(piece)):
            if record.type == RecordType.MESSAGE and record.topic == TOPIC.encode():
                found[record.log_offset] = int(record.payload[:7])
    return found


def has_all_between(numbers: dict[int, int], missing: list[tuple[int, int]]) -> bool:
    """Whether each number is there, but for those that retention dropped between two backups."""
    return all(
        after == before + 1 or any(at < end and start < then for start, end in missing)
        for (at, before), (then, after) in pairwise(numbers.items())
    )


def test_backup_has_all_messages_acknowledged_before_it(
    penstock_server: ServerFactory, small: dict[str, object], tmp_path: Path
) -> None:
    randomly = random.Random(7)
    retention = {"store.retention_bytes": 300_000, "store.retention_check_s": 1}
    server = penstock_server(flush="sync", settings=small | retention)
    publisher = Publisher(server)
    target = tmp_path / "backup"
    wait_until(lambda: len(publisher.acknowledged) > 50)
    for _ in range(KILLS):
        killed = store_command("backup", server.data, target)
        with suppress(subprocess.TimeoutExpired):
            killed.wait(randomly.uniform(0.2, 0.6))
        killed.kill()
        killed.communicate()
    before = len(publisher.acknowledged)
    done = store_command("backup", server.data, target)
    said, complaint = done.communicate(timeout=60)
    publisher.stop()
    assert done.returncode == 0, said + complaint
    server.kill()
    killed = store_command("restore", target, tmp_path / "new")
    with suppress(subprocess.TimeoutExpired):
        killed.wait(0.3)
    killed.kill()
    killed.communicate()
    shutil.rmtree(tmp_path / "new", ignore_errors=True)  # it may have been done
    done = store_command("restore", target, tmp_path / "new", "--skip-bytes", 10_000_000)
    said, complaint = done.communicate(timeout=60)
    assert done.returncode == 0, said + complaint
    manifest = read_manifest(target)
    assert manifest is not None
    found = numbers_in(tmp_path / "new")
    assert has_all_between(found, manifest.missing)
    assert max(found.values()) >= before
    for start, end in manifest.missing:  # on a machine so slow that retention was faster than a backup
        assert f"{start} to {end}".encode() in complaint
    again = penstock_server(flush="sync", settings=small, data=tmp_path / "new")
    fresh = Publisher(again)
    wait_until(lambda: len(fresh.acknowledged) > 5)
    fresh.stop()
    again.terminate()
    report = check_folder(tmp_path / "new")
    assert (report.damage, report.end_log_offset > manifest.end + 10_000_000) == ([], True)
