"""What open pages of the console cost the broker: CPU for each message without a page, with the overview, and with the
page of a hot topic beside it; in turn on one server, medians.

On a machine that is busy with other things too, the CPU of a message says more than the rate, and the ratio within a
round more than that of the medians.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.support.console_process import console_url
from tests.support.server_process import PenstockServer, ServeOptions

REPEATS = 5
OVERVIEW_EVERY_S = 2.0
GOAL_PERCENT = 3.0
TIMEOUT_S = 60
LOAD_CORE = "1"
MESSAGES = 8_000_000
TOPIC = "bench/0"
LOADS = {
    "10 topics, one looked at": f"-P 10 -S 10 -f m -n {MESSAGES // 10} -q 0",
    "one topic, looked at": f"-n {MESSAGES} -q 0",
}
CHARTS = tuple(f"/overview/chart?of={name}&span=1h" for name in ("rates", "latency", "lag", "log"))
PAGES = ("no page", "overview", "overview, hot topic")


class Costs(NamedTuple):
    """Of one run: microseconds of CPU for each message, of broker and console, and messages delivered a second."""

    broker_us: float
    console_us: float
    rate: float


def open_pages(mqload: Path, folder: Path) -> dict[str, object]:
    """The costs of each load with each of PAGES; prints them."""
    data = Path(tempfile.mkdtemp(prefix="data-", dir=folder))
    settings = {"console.enabled": True, "console.listen": "127.0.0.1:0"}
    server = PenstockServer(data, data.with_suffix(".log"), ServeOptions({"flush": "async"}, settings))
    try:
        found = {load: _measured(server, mqload, options) for load, options in LOADS.items()}
    finally:
        server.kill()
        shutil.rmtree(data)
    return {"goal": GOAL_PERCENT, "costs": found}


def _measured(server: PenstockServer, mqload: Path, options: str) -> dict[str, Costs]:
    """Medians by page; all pages in turn."""
    runs: dict[str, list[Costs]] = {pages: [] for pages in PAGES}
    address = console_url(server).removeprefix("http://")
    _run(server, mqload, options)  # to warm up
    for number in range(REPEATS):
        for pages in PAGES[number % len(PAGES) :] + PAGES[: number % len(PAGES)]:
            with _opened(pages, address):
                runs[pages].append(_run(server, mqload, options))
    found = {pages: Costs(*map(statistics.median, zip(*costs, strict=True))) for pages, costs in runs.items()}
    for pages, costs in found.items():
        rounds = zip(runs[pages], runs["no page"], strict=True)
        more = statistics.median(here.broker_us / without.broker_us for here, without in rounds) - 1
        print(
            f"{options:36} {pages:20} broker {costs.broker_us:.3f} µs a message "
            f"({more:+.1%}, goal ≤ {GOAL_PERCENT:.0f} %), console {costs.console_us:.3f} µs, {costs.rate:,.0f}/s"
        )
    return found


def _run(server: PenstockServer, mqload: Path, options: str) -> Costs:
    broker = psutil.Process(server.process.pid)
    (console,) = (child for child in broker.children() if "console" in child.cmdline())
    before_s = _cpu_s(broker), _cpu_s(console)
    command = ["taskset", "-c", LOAD_CORE, str(mqload), "-p", str(server.port), *options.split()]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    broker_s, console_s = _cpu_s(broker) - before_s[0], _cpu_s(console) - before_s[1]
    rate = re.search(r"deliver_rate=(\d+)", said)
    assert rate, said
    return Costs(1e6 * broker_s / MESSAGES, 1e6 * console_s / MESSAGES, float(rate[1]))


def _cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


@contextmanager
def _opened(pages: str, address: str) -> Iterator[None]:
    with ExitStack() as stack:
        if "overview" in pages:
            stack.enter_context(_overview(address))
        if "topic" in pages:
            stack.enter_context(_topic_page(address))
        yield


@contextmanager
def _overview(address: str) -> Iterator[None]:
    """The overview, as a browser has it open."""
    done = threading.Event()

    def look() -> None:
        connection = HTTPConnection(address, timeout=TIMEOUT_S)
        while not done.wait(OVERVIEW_EVERY_S):
            for path in ("/", *CHARTS):
                connection.request("GET", path, headers={"HX-Request": "true"})
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()
        connection.close()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        done.set()
        looking.join()


@contextmanager
def _topic_page(address: str) -> Iterator[None]:
    """The page of TOPIC, as a browser has it open: what its stream brings is read and dropped."""
    connection = HTTPConnection(address, timeout=TIMEOUT_S)
    connection.request("GET", f"/topic?name={TOPIC}")
    (path,) = re.findall(r'sse-connect="([^"]+)"', connection.getresponse().read().decode())
    with subprocess.Popen(
        ["curl", "-sN", f"http://{address}{path.replace('&amp;', '&')}"], stdout=subprocess.DEVNULL
    ) as curl:
        yield
        curl.kill()
