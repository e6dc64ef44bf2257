"""`penstock bench`: devices on real brokers, what it writes, what it says when something is wrong."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from msgspec.structs import replace

from loadtest.brokers import streams, worth
from loadtest.brokers.kinds import KINDS, BrokerKind, Start, running
from loadtest.devices.address import BrokerAddress
from loadtest.devices.run import WorkloadRun, run
from loadtest.errors import BrokerRefuses
from loadtest.report.results import read
from loadtest.workloads.workload import Publishers, Subscribers, Timing, Workload, WorkloadStep, load, shipped
from tests.bench import locks
from tests.interop.programs import penstock
from tests.interop.programs import run as run_program
from tests.support.certificates import authority, vouched_for
from tests.support.server_process import PenstockServer, ServeOptions, free_port

PATIENCE_S = 180  # brokers are started, killed and started again
SHORT = """
name = "short"
text = "Everything at once."
version = {version}

[[publishers]]
count = 20
topics = ["load/{{i}}", "more/{{i%4}}"]
qos = {qos}
sizes = [16, 1000]
rate = 2_000

[[subscribers]]
count = 3
filters = ["load/+", "more/+"]
qos = {qos}

[timing]
warm_up_s = 0.2
duration_s = 1
"""
BROKERS = [
    "mosquitto",
    "penstock",
    "penstock-apart",
]


def measured(kind: str, folder: Path, workload: Workload) -> WorkloadRun:
    with running(KINDS[kind], folder / "broker", set()) as broker:
        return run(workload, broker.address, broker.pids, lambda *_: None)


@pytest.mark.parametrize(
    ("qos", "version"),
    [(0, 4), (1, 5), (2, 5), *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((0, 5), (1, 4), (2, 4)))],
)
@pytest.mark.catalogue("O60")
def test_bench_counts_sent_and_delivered_messages(tmp_path: Path, qos: int, version: int) -> None:
    file = tmp_path / "short.toml"
    file.write_text(SHORT.format(qos=qos, version=version))
    with running(KINDS["penstock"], tmp_path / "broker", set()) as broker:
        url = f"mqtt://127.0.0.1:{broker.address.port}"
        said = run_program(
            *penstock("bench", "run", str(file), "--url", url, "--repeats", "2"),
            *("--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")),
        )
    assert said.startswith(b"short ")
    (row,) = read(tmp_path / "r.json").rows
    assert len(row.runs) == 2
    for found in row.runs:
        assert (found.devices, found.lost, found.refused, found.unacknowledged) == (23, 0, 0, 0)
        assert found.delivery is not None
        assert found.delivery.count > found.sent_per_s
        assert (found.acknowledging is not None) == (qos > 0)
        assert found.broker_cores is not None
        assert found.slices
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == 2
    assert "Everything at once." in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", ""), "the page is to need nothing else"
    assert b"| mqtt://" in run_program(*penstock("bench", "report", str(tmp_path / "r.json")))


@pytest.mark.parametrize("kind", BROKERS)
def test_as_fast_as_it_goes(kind: str, tmp_path: Path) -> None:
    workload = Workload(
        "fast",
        "",
        [Publishers(["load/{i}"], 5, qos=1, window=50)],
        [Subscribers(["load/#"], qos=1)],
        timing=Timing(0.1, 0.5),
    )
    found = measured(kind, tmp_path, workload)
    assert (found.lost, found.refused, found.unacknowledged) == (0, 0, 0)
    assert found.delivered_per_s > 1_000


@pytest.mark.parametrize("version", [4, 5])
def test_bench_delivers_the_backlog_when_a_session_returns(version: int, tmp_path: Path) -> None:
    away, back = WorkloadStep("leave", ["late"]), WorkloadStep("join", ["late"], measured=True)
    workload = Workload(
        "backlog",
        "",
        [Publishers(["load/{i}"], 2, qos=1)],
        [Subscribers(["load/#"], qos=1, keep_session=True, name="late")],
        [away, WorkloadStep("publish", messages=5_000), back, WorkloadStep("deliver", measured=True)],
        version,
    )
    with running(KINDS["penstock"], tmp_path / "broker", set()) as broker:
        for _ in range(2):
            found = run(workload, broker.address, broker.pids, lambda *_: None)
            assert [step.sent for step in found.steps] == [0, 5_000, 0, 0]
            assert sum(step.delivered for step in found.steps if step.measured) == 5_000
            assert found.joined_per_s > 0
            assert found.sent_per_s == 0
            assert found.lost == 0


def test_retained_messages_and_a_storm(tmp_path: Path) -> None:
    workload = Workload(
        "storm",
        "",
        [Publishers(["load/{j}"], qos=1, each=300, retain=True)],
        [Subscribers(["load/{i}"], 300, qos=1, absent=True)],
        [
            WorkloadStep("publish", messages=300),
            WorkloadStep("join", ["subscribers"]),
            WorkloadStep("deliver"),
            WorkloadStep("cut", ["subscribers"]),
            WorkloadStep("join", ["subscribers"], measured=True),
        ],
    )
    with running(KINDS["mosquitto"], tmp_path / "broker", set()) as broker:
        found = run(workload, broker.address, broker.pids, lambda *_: None)
    assert [step.joined for step in found.steps] == [0, 300, 0, 0, 300]
    assert found.steps[1].delivered + found.steps[2].delivered == 300


@pytest.mark.catalogue("I36", "Q68")
def test_bundled_vehicle_workloads_run(tmp_path: Path) -> None:
    names = [name for name in shipped() if name.startswith(("vehicle", "roadside"))]
    assert len(names) == 6
    with running(KINDS["penstock"], tmp_path / "broker", set()) as broker:
        for name in names:
            workload = replace(load(name), timing=Timing(0.2, 1))
            found = run(workload, broker.address, broker.pids, lambda *_: None)
            assert (found.lost, found.refused, found.unacknowledged) == (0, 0, 0), name
            assert found.delivered_per_s > 0


OTHER_SCHEME = {"mqtts": "wss", "ws": "mqtts", "wss": "mqtts"}


@pytest.mark.parametrize("scheme", OTHER_SCHEME)
@pytest.mark.parametrize("sizes", [[16, 1000], [300_000]], ids=["small", "large"])
def test_over_tls_and_websocket(scheme: str, sizes: list[int], tmp_path: Path) -> None:
    trusted = authority(tmp_path, "authority")
    own = vouched_for(tmp_path, "server", "IP:127.0.0.1", trusted)
    settings = {
        "gateway.listen": f"{scheme}://127.0.0.1:{free_port()}",
        "gateway.tls_certificate": own.certificate,
        "gateway.tls_key": own.key,
    }
    workload = Workload(
        "layers",
        "",
        [Publishers(["load/{i}"], 5, qos=1, window=5, sizes=sizes)],
        [Subscribers(["load/#"], qos=1)],
        timing=Timing(0.1, 0.5),
    )
    server = PenstockServer(tmp_path / "data", tmp_path / "log", ServeOptions({}, settings))
    try:
        url = server.urls[0]
        found = run(workload, BrokerAddress.parse(url, trusted.certificate), [], lambda *_: None)
        assert (found.lost, found.refused, found.unacknowledged) == (0, 0, 0)
        assert found.delivered_per_s > 0  # how many is a question of the machine: five of 300 KB may take half a second
        if scheme != "ws":
            run(workload, BrokerAddress.parse(url, is_verified=False), [], lambda *_: None)
            with pytest.raises(BrokerRefuses, match="name whom to trust with --ca"):
                run(workload, BrokerAddress.parse(url), [], lambda *_: None)
        if len(sizes) == 1:
            return
        wrong = BrokerAddress.parse(f"{OTHER_SCHEME[scheme]}://127.0.0.1:{urlsplit(url).port}", trusted.certificate)
        with pytest.raises(BrokerRefuses):
            run(workload, wrong, [], lambda *_: None)
    finally:
        server.terminate()


def test_a_stall_shows_in_the_latency(tmp_path: Path) -> None:
    """Messages that should have been sent while the broker stood still are late, although they were sent later."""
    workload = Workload(
        "stall",
        "",
        [Publishers(["load/all"], qos=1, window=1, rate=1_000)],
        [Subscribers(["load/all"], qos=1)],
        timing=Timing(0.1, 2),
    )
    with running(KINDS["mosquitto"], tmp_path / "broker", set()) as broker:
        (pid,) = broker.pids

        def stall() -> None:
            subprocess.run(["kill", "-STOP", str(pid)], check=True)
            threading.Timer(0.5, lambda: subprocess.run(["kill", "-CONT", str(pid)], check=True)).start()

        threading.Timer(0.8, stall).start()
        found = run(workload, broker.address, broker.pids, lambda *_: None)
    assert found.delivery is not None
    assert found.lost == 0
    assert found.delivery.max >= 490_000
    late = found.delivery.p90
    assert late > 50_000, "one message in ten was late, and not just the one that was on its way"


def test_a_broker_that_dies_is_said(tmp_path: Path) -> None:
    workload = Workload("gone", "", [Publishers(["load/all"])], [], timing=Timing(0.1, 30))
    with running(KINDS["mosquitto"], tmp_path / "broker", set()) as broker:
        threading.Timer(0.5, broker.kill).start()
        with pytest.raises(BrokerRefuses, match="have no connection"):
            run(workload, broker.address, broker.pids, lambda *_: None)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["run", "nowhere.toml"], b"nowhere.toml: No such file or directory; name a file"),
        (["run", "qos0", "--url", "mqtt://127.0.0.1:1"], b"does a broker listen there?"),
        (["run", "qos0", "--url", "http://127.0.0.1"], b"no broker's address; use mqtt://HOST:PORT, or mqtts://"),
        (["compare", "qos0", "--brokers", "nobody"], b"not a broker that bench can start; --brokers takes penstock"),
        (["model", "--rate", "many"], b"'many': no number; use one like 20000, 250k or 1M"),
        (
            ["model", "--costs", "nowhere.json"],
            b"nowhere.json: No such file or directory; `penstock bench model --measure",
        ),
        (["scaling", "nowhere.yaml"], b"nowhere.yaml: No such file or directory; name what `helm template` rendered"),
        (["scaling", "docker-compose.yml"], b"0 HorizontalPodAutoscalers; render one"),
        (["full", "--brokers", "nobody"], b"not a broker that bench can start; --brokers takes penstock"),
        (["run", "qos0", "--url", "mqtts://127.0.0.1:1", "--ca", "nowhere.pem"], b"nowhere.pem: No such file"),
        (["report", "pyproject.toml"], b"not the results of a load test"),
    ],
)
def test_bench_reports_errors_in_one_line(arguments: list[str], fault: bytes) -> None:
    done = subprocess.run(penstock("bench", *arguments), capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"penstock: ")
    assert fault in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.catalogue("O60", "R82")
def test_compare(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text(SHORT.format(qos=1, version=4))
    command = penstock("bench", "compare", str(file), "--brokers", "mosquitto,penstock", "--repeats", "2")
    subprocess.run([*command, "--json", str(tmp_path / "r.json")], check=True, timeout=PATIENCE_S, capture_output=True)
    results = read(tmp_path / "r.json")
    assert [(row.subject.name, len(row.runs)) for row in results.rows] == [("Mosquitto", 2), ("Penstock", 2)]
    theirs, ours = (row.subject.worth for row in results.rows)
    assert theirs is not None
    assert theirs.survived == 0
    assert ours is not None
    assert ours.survived == ours.acknowledged >= worth.MESSAGES


@pytest.mark.parametrize("name", [pytest.param("rabbitmq", marks=pytest.mark.nightly), "redis"])
def test_brokers_of_others_leave_nothing_behind(name: str, tmp_path: Path) -> None:
    if not KINDS[name].is_installed:
        pytest.skip(f"{KINDS[name].program} is not installed")
    workload = Workload(
        "short",
        "",
        [Publishers(["load/{i}"], 2, qos=1, window=10)],
        [Subscribers(["load/#"], qos=1)],
        timing=Timing(0.1, 0.3, 20),
    )
    measured_by = run if KINDS[name].speaks_mqtt else streams.run
    with running(KINDS[name], tmp_path / "broker", set()) as broker:
        found = measured_by(workload, broker.address, broker.pids, lambda *_: None)
        assert started_in(tmp_path)
    assert found.delivered_per_s > 0
    assert started_in(tmp_path) == []


def started_in(folder: Path) -> list[str]:
    """Names of the processes that work there."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder):
                found.append(process.name())
    return found


def test_a_comparison_that_is_ended_ends_its_brokers(tmp_path: Path) -> None:
    command = penstock("bench", "compare", "qos0", "--brokers", "mosquitto", "--no-worth", "--repeats", "1000")
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL) as process:
        while not started_in(tmp_path):
            assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 128 + 15
    assert started_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket that was just tried
@pytest.mark.parametrize("waits_for", ["the broker", "what it needs"])
def test_a_broker_that_is_ended_before_it_listens_ends(waits_for: str, tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import time; time.sleep(1000)")
    start = Start(command) if waits_for == "the broker" else Start(command, beside=command, beside_port=free_port())

    def end_once_started() -> None:
        while not started_in(tmp_path):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(end_once_started)
            with (
                pytest.raises(SystemExit, match="ended"),
                running(BrokerKind("deaf", "", "", (), lambda *_: start), tmp_path, set()),
            ):
                pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started_in(tmp_path) == []


def test_a_full_comparison_in_no_time(tmp_path: Path) -> None:
    """Nothing begins once the time is over; the page says what was left out, and which goals were not measured."""
    command = penstock(
        "bench", "full", "--minutes", "0.1", "--seconds", "0.1", "--repeats", "1", "--brokers", "mosquitto"
    )
    written = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    subprocess.run([*command, *written], check=True, timeout=PATIENCE_S, capture_output=True)
    page = (tmp_path / "r.md").read_text()
    assert "| backlog | ≥ 300,000/s | not measured | – |" in page
    assert "left out, as the time that was given was over" in page
    assert f"({tmp_path.name}/r.svg)" in page
    assert "<svg" in (tmp_path / "r.svg").read_text()
    assert read(tmp_path / "r.json").row("QoS 0", "Penstock") is None


def test_the_model_as_a_table_and_as_json() -> None:
    command = penstock("bench", "model", "--connections", "1M", "--queues", "10M", "--rate", "1M", "--fan-out", "2")
    table = run_program(*command)
    assert [line.split()[0] for line in table.splitlines()[:2]] == [b"gateways", b"stores"]
    assert b"how far the model was off there" in table
    found = json.loads(run_program(*command, "--json"))
    assert found["needs"]["gateways"] >= 10
    assert found["demand"]["queues"] == 10_000_000


@pytest.mark.catalogue("M45", "Q70")
def test_locks_are_measured_beside_a_single_writer(capsys: pytest.CaptureFixture[str]) -> None:
    locks.main(0.02, 1)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == len(locks.KINDS) * len(locks.THREADS) * len(locks.BODY_BYTES)
    assert all(float(row.split(" | ")[3].replace(",", "")) > 1_000 for row in rows)
