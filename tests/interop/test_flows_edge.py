"""A small store at a plant, whose line to its center is away for a day.

Its devices say 288,000 messages meanwhile, as fast as they go, and its log keeps a fraction of them: the rest goes into
its tier. The center gets all that `where` lets through, in the order of each device; whoever is at the plant notices
nothing of the line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from penstock.sync import Client
from store.files.segment import segment_paths
from tests.conftest import ServerFactory
from tests.interop.programs import penstock, run
from tests.support.broker_wire import BrokerWire
from tests.support.device_pings import DevicePings, Latencies
from tests.support.plant_devices import Application, celsius_of, minute_of, topic_of
from tests.support.server_process import ROOT, PenstockServer
from tests.support.stores import wait_until as until

PATIENCE_S = 900
DEVICES, MINUTES = 200, 24 * 60
ABOVE = 89  # one in ten
MOST_MEMORY_BYTES = 60 << 20  # more than the flow's process had before
SMALL_LOG: dict[str, object] = {
    "store.segment_bytes": 256 << 10,
    "store.retention_bytes": 512 << 10,
    "store.retention_check_s": 1,
    "gateway.maximum_packet_size_bytes": 65_536,
    "tier.commit_s": 2,
}
FLOW = """
[flow.up]
from = "line/#"
where = "json.celsius > {above}"
to = "mqtt://127.0.0.1:{port}/plant-7"
format = "raw"
ordered = true
timeout_s = 5
"""


def wait_until(condition: Callable[[], Any]) -> None:
    until(condition, PATIENCE_S)


class FlowMemory:
    """Of the process that runs a plant's flows."""

    def __init__(self, plant: PenstockServer) -> None:
        children = psutil.Process(plant.process.pid).children(recursive=True)
        (self._process,) = [child for child in children if "flow" in child.cmdline()]
        self.began_bytes = self.most_bytes = 0
        self.began_bytes = self.look()

    def look(self) -> int:
        found = int(self._process.memory_info().rss)
        self.most_bytes = max(self.most_bytes, found)
        return found

    def __str__(self) -> str:
        return f"{self.began_bytes >> 20} MiB before, {self.most_bytes >> 20} MiB at most"


class Day(NamedTuple):
    """What was felt at the plant."""

    took_s: float
    latencies: Latencies

    def __str__(self) -> str:
        return f"all was said after {self.took_s:.1f} s; {self.latencies}"


def day(plant: PenstockServer, folder: Path, look: Callable[[], object] = bool) -> Day:
    """All devices say what they say in a day, and the application at the plant gets it. `look`: is called meanwhile."""
    application = Application(plant.port)
    pings = DevicePings(plant.port, folder / f"pings-{plant.port}")
    command = [sys.executable, "-m", "tests.support.plant_devices", *map(str, (plant.port, DEVICES, MINUTES))]
    began_s = time.monotonic()
    saying = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: (look(), saying.poll() is not None)[1])
        took_s = time.monotonic() - began_s
        assert saying.returncode == 0
        wait_until(lambda: (look(), application.came == DEVICES * MINUTES)[1])
        assert application.minutes == {topic_of(device): list(range(MINUTES)) for device in range(DEVICES)}
        return Day(took_s, pings.between(began_s, began_s + took_s))
    finally:
        saying.kill()
        saying.wait()
        pings.close()
        application.close()


def row(plant: PenstockServer) -> dict[str, Any]:
    """What `penstock flow list` says of the flow; nothing before it has begun."""
    rows = json.loads(run(*penstock("flow", "list", "--json", "--store", console(plant))))
    return next(iter(rows), {})


def oldest(plant: PenstockServer) -> int:
    """The log_offset at which its log begins."""
    return min(int(path.stem) for path in segment_paths(plant.data / "log"))


def console(server: PenstockServer) -> str:
    return f"unix://{server.data.absolute()}/console.sock"


@pytest.mark.nightly
@pytest.mark.alone  # latencies are compared
@pytest.mark.catalogue("Q66")
def test_a_line_that_is_away_for_a_day(penstock_server: ServerFactory, tmp_path: Path) -> None:
    center = penstock_server()
    wire = BrokerWire(center.port)
    file = tmp_path / "plant.toml"
    file.write_text(FLOW.format(above=ABOVE, port=wire.port))
    plant = penstock_server(settings=SMALL_LOG | {"tier.url": tmp_path / "table", "flows.file": file})
    try:
        with Client(console(plant)) as client:
            client.publish("line/first", b'{"celsius": 100}')
        wait_until(lambda: row(plant).get("sent") == 1)
        memory = FlowMemory(plant)
        wire.cut()
        away = day(plant, tmp_path, memory.look)
        wait_until(lambda: row(plant)["away"])
        assert row(plant)["lag"] > 0.5 * DEVICES * MINUTES
        wait_until(lambda: oldest(plant) > 50 * DEVICES * MINUTES)  # bytes: retention has dropped half of it or more
        began_s = time.monotonic()
        wire.mend()
        wait_until(lambda: (memory.look(), row(plant)["lag"] == 0)[1])
        took_s = time.monotonic() - began_s
        print(f"\nwhile the line is away: {away}\nthe flow's process: {memory}; all is there {took_s:.0f} s afterwards")
        _check_center(center)
        assert "were gone before it took them" not in plant.log_text()
        assert "Traceback" not in plant.log_text()
        assert memory.most_bytes - memory.began_bytes < MOST_MEMORY_BYTES, str(memory)
    finally:
        wire.close()
    plant.terminate()
    without = day(penstock_server(settings=SMALL_LOG | {"tier.url": tmp_path / "table-without"}), tmp_path)
    print(f"without a flow: {without}")
    assert away.latencies.median_ms < 3 * without.latencies.median_ms + 10
    assert away.latencies.p99_ms < 3 * without.latencies.p99_ms + 100


def _check_center(center: PenstockServer) -> None:
    """It has what is above, of each device in order; what was under way when the line was cut twice at most."""
    found: dict[str, list[int]] = defaultdict(list)
    with Client(console(center)) as client:
        for message in client.read("plant-7/line/#"):
            if message.topic != "plant-7/line/first":
                found[message.topic].append(minute_of(message.payload))
    for device in range(DEVICES):
        expected = [minute for minute in range(MINUTES) if celsius_of(device, minute) > ABOVE]
        came = found.pop(f"plant-7/{topic_of(device)}")
        assert list(dict.fromkeys(came)) == expected
        assert len(came) <= len(expected) + 1
    assert not found
