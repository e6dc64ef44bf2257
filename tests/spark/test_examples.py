"""examples/spark: each program on a small fleet, whose oddities are known (examples/spark/generate.py)."""

import importlib
import json
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import paho.mqtt.client as paho
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from loadtest.chaos.cluster import Cluster
from tests.spark.fleet import connected, leave
from tests.support.server_process import ROOT

EXAMPLES = ROOT / "examples" / "spark"
MODULES = ("start", "payloads", "generate", "telemetry", "offline", "anomalies", "quality", "trips")
MACHINES, MINUTES, END_S = 20, 60, 1_700_000_000
TIMEOUT_S = 120

Example = Callable[[str], Any]


@pytest.fixture(scope="module")
def example() -> Iterator[Example]:
    """Imports a program by its name, as it imports the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def data(example: Example, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("examples") / "data"
    generate = example("generate")
    generate.write(folder, generate.Fleet(MACHINES, MINUTES, END_S))
    return str(folder)


def test_telemetry_by_the_minute(example: Example, data: str, spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(2):  # the second run has nothing to do
        assert example("telemetry").main([data, str(tmp_path)]) == 0
    rows = spark.read.parquet(str(tmp_path / "minutes")).collect()
    assert len({(row.minute, row.machine) for row in rows}) == len(rows)
    minutes = sorted({row.minute for row in rows})
    assert len(minutes) >= MINUTES - 12  # but for what may still come
    whole = [row for row in rows if minutes[1] < row.minute < minutes[-1]]  # in the first is only what came late
    readings: Counter[str] = Counter()
    for row in whole:
        readings[row.machine] += row.readings
    usual = 12 * (len(minutes) - 3)
    assert {machine for machine, count in readings.items() if count == usual} >= {
        f"machine/{number}" for number in (0, *range(4, MACHINES))
    }
    assert readings["machine/1"] < usual * 0.8
    hottest = max(whole, key=lambda row: row.hottest)
    assert (hottest.machine, hottest.hottest > 120) == ("machine/0", True)


@pytest.mark.nightly
def test_offline_example_reports_a_silent_machine_once(
    example: Example, data: str, spark: SparkSession, tmp_path: Path
) -> None:
    assert example("offline").main([data, str(tmp_path)]) == 0
    rows = spark.read.parquet(str(tmp_path / "alerts")).orderBy("since").collect()
    generate = example("generate")
    silent = generate.Fleet(MACHINES, MINUTES, END_S).silent_s
    began = END_S - MINUTES * 60
    assert [(row.machine, row.state, round(row.since.timestamp()) - began) for row in rows] == [
        ("machine/1", "offline", silent.start - generate.STEP_S),
        ("machine/1", "online", silent.stop),
    ]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    """A store with an address for programs, and a gateway for devices."""
    cluster = Cluster(tmp_path, gateways=1, wires=False)
    yield cluster
    cluster.close()


def test_alerts_reach_a_device(
    example: Example, data: str, spark: SparkSession, there: Cluster, tmp_path: Path
) -> None:
    got: list[tuple[str, str]] = []
    both = threading.Event()

    def on_message(_client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        got.append((message.topic, json.loads(message.payload)["state"]))
        if len(got) == 2:
            both.set()

    device = connected(there.ports[0], "a-device")
    device.on_message = on_message
    subscribed = threading.Event()
    device.on_subscribe = lambda *_: subscribed.set()
    device.subscribe("alerts/#", 1)
    assert subscribed.wait(TIMEOUT_S)
    assert example("offline").main([data, str(tmp_path), "--store", there.store_url.replace("tcp:", "penstock:")]) == 0
    assert both.wait(TIMEOUT_S)
    leave(device)
    assert sorted(got) == [("alerts/machine/1", "offline"), ("alerts/machine/1", "online")]


@pytest.mark.nightly
def test_anomalies_by_score_and_by_model(example: Example, data: str, spark: SparkSession, tmp_path: Path) -> None:
    anomalies = example("anomalies")
    for work in ("scores", "train", "detect"):
        assert anomalies.main([work, data, str(tmp_path)]) == 0
    scores, found = (spark.read.parquet(str(tmp_path / name)).collect() for name in ("scores", "anomalies"))
    assert {row.machine for row in scores} == {"machine/0"}
    hot = {row.start for row in scores}
    assert 4 <= len(hot) <= 5  # three minutes, in windows of two
    assert {row.start for row in found if row.machine == "machine/0"} >= hot
    assert sum(row.machine != "machine/0" for row in found) <= 3


def test_the_quality_report_names_what_is_wrong(example: Example, data: str, tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    assert example("quality").main([data, "--out", str(out)]) == 0
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.read_text().splitlines()]
    counts = {row[0]: row[1] for row in cells if len(row) == 3}
    assert counts["unreadable payload"] == "12"
    assert counts["measured before one that was stored earlier"] == "11"
    assert counts["measured twice at one time"] == "22"
    assert counts["no temperature"] == counts["measured in the future"] == "0"
    worst = [row[0] for row in cells if row[0].startswith("machine/")]
    assert worst[:2] == ["machine/3", "machine/2"]


def test_trips_of_vehicles(example: Example, data: str, spark: SparkSession, tmp_path: Path) -> None:
    assert example("trips").main([data, str(tmp_path / "trips")]) == 0
    rows = spark.read.parquet(str(tmp_path / "trips")).collect()
    assert Counter(row.vehicle for row in rows) == {f"vehicle/{number}": 3 for number in range(MACHINES // 5)}
    assert {row.positions for row in rows} == {144}
    assert all(abs(row.km - 7.95) < 0.01 for row in rows)
    assert {round(row.top_kmh) for row in rows if row.vehicle == "vehicle/3"} == {43}


@pytest.mark.nightly
def test_the_notebook_runs(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(EXAMPLES / "fleet.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)  # none is committed
    monkeypatch.setenv("PENSTOCK_DATA", data)
    shutil.copytree(EXAMPLES, tmp_path / "spark")
    NotebookClient(notebook, timeout=TIMEOUT_S, resources={"metadata": {"path": str(tmp_path / "spark")}}).execute()
    images = [output for cell in code for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(images) >= 3
