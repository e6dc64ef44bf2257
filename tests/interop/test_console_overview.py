"""The overview of a store with gateways apart, under load: every figure is known, summed and by gateway, and kills of a
gateway, the store and the console give gaps, and neither negative rates nor spikes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.conftest import QUICK, SharedServers
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.support.apart_server import ApartServer
from tests.support.console_browser import ConsoleBrowsers
from tests.support.console_process import ConsoleProcess, WebClient

pytestmark = pytest.mark.topologies("two gateways")

SUM_OF_TWO = "penstock_connections"
NUMBERS = ("messages_in", "messages_out", "clients")
LATENCIES = ("delivered", "acknowledged")
PAUSE_S = 0.02
MOST_RATE = 200_000
"""A message a pause from each device, and as many again for each subscriber, is far less."""


class Busy:
    """Devices at both gateways that go on publishing and come back by themselves."""

    def __init__(self, server: ApartServer) -> None:
        self.devices = [PahoClient(server.port, client_id=f"busy-{number}").connect() for number in range(4)]
        for device in self.devices:
            device.client.reconnect_delay_set(1, 1)
            device.client.on_connect = lambda client, *_: client.subscribe("busy/#", 1)
            device.subscribe("busy/#", 1)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        while not self._done.wait(PAUSE_S):
            for device in self.devices:
                if device.client.is_connected():
                    device.client.publish("busy/1", b"x", 1)

    def end(self) -> None:
        self._done.set()
        self._thread.join()
        for device in self.devices:
            device.leave()


class Watched:
    """A server that is busy, and its console."""

    def __init__(self, server: ApartServer) -> None:
        self.server = server
        settings = {"console.sample_s": 1, "console.stuck_s": 60}
        self.console = ConsoleProcess(server.data.parent, f"unix://{server.data.absolute()}/console.sock", settings)
        self.busy, self.asks = Busy(server), threading.Event()

    @property
    def client(self) -> WebClient:
        return self.console.client()

    def gateways(self, state: str = "connected") -> list[dict[str, Any]]:
        found = self.client.get("/server/gateways")
        return [each for each in found.json["gateways"] if each["state"] == state] if found.status == 200 else []

    def history(self, **query: Any) -> list[dict[str, Any]]:
        found = self.client.get("/server/history", **query)
        assert found.status == 200, found.body
        points: list[dict[str, Any]] = found.json["points"]
        return points

    def newest(self) -> str:
        return str(self.history()[-1]["time"])

    def until(self, condition: Callable[[], bool]) -> None:
        """Ask now and then: each condition is some requests."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, (self.client.get("/server/gateways").body, self.history()[-2:])
            self.asks.wait(PAUSE_S)

    def until_busy_since(self, at: str, gateways: int = 2) -> None:
        self.until(lambda: self.is_busy_since(at, gateways))

    def is_busy_since(self, at: str, gateways: int = 2) -> bool:
        """Whether there is a sample after that in which all is known, and each gateway delivers."""
        found = self.gateways()
        if len(found) != gateways or not all((each["messages_out"] or 0) > 0 for each in found):
            return False
        points = self.history()
        if not points:
            return False
        newest = points[-1]
        known = all(newest[name] for name in NUMBERS) and all(newest[name]["p99_s"] for name in LATENCIES)
        return known and newest["time"] > at

    def check_rates(self) -> None:
        for point in [
            *self.history(),
            *(each for name in self.gateways() for each in self.history(gateway=name["name"])),
        ]:
            for name in NUMBERS:
                assert point[name] is None or 0 <= point[name] < MOST_RATE, point


@pytest.fixture(scope="module")
def watched(shared_server: SharedServers) -> Iterator[Watched]:
    server = shared_server(settings=dict(QUICK), flush="async")
    assert isinstance(server, ApartServer)
    watched = Watched(server)
    try:
        watched.until_busy_since("")
        yield watched
    finally:
        watched.busy.end()
        watched.console.close()


def test_every_figure_is_known_summed_and_by_gateway(watched: Watched, browsers: ConsoleBrowsers) -> None:
    for gateway in watched.gateways():
        assert gateway["clients"] == 2
        assert (gateway["version"], gateway["unready"]) == (watched.client.get("/server").json["version"], "")
        assert all(0 < gateway[name]["p50_s"] <= gateway[name]["p99_s"] for name in LATENCIES)
        assert watched.history(gateway=gateway["name"])
    samples = watched.client.get("/server/figures", name=SUM_OF_TWO).json["figures"]
    by_gateway = {each["labels"]["gateway"]: each["value"] for each in samples if each["name"] == SUM_OF_TWO}
    assert by_gateway == {gateway["name"]: 2 for gateway in watched.gateways()}
    newest = watched.history()[-1]
    assert newest["clients"] == 4
    assert newest["log_bytes"] > 0
    window = browsers.window(watched.console.url)
    page = window.open("/")
    tiles = page.locator(".figures")
    expect(tiles.locator("dt")).to_have_text(["in", "out", "p50", "p99", "clients", "lag", "log", "disk free"])
    expect(tiles.locator(".unknown")).to_have_count(0)
    rows = page.get_by_role("region", name="Gateways").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="–")).to_have_count(0)
    figures = page.locator("figure.chart")
    expect(figures).to_have_count(4)
    for number in range(4):
        expect(figures.nth(number)).to_have_attribute("data-points", re.compile("[1-9]"))
    rows.first.get_by_role("link").click()
    expect(page.get_by_role("region", name="Charts").locator("h2")).to_contain_text(watched.gateways()[0]["name"])
    expect(figures).to_have_count(2)
    expect(figures.last).to_have_attribute("data-points", re.compile("[1-9]"))
    window.check()
    window.context.close()


def test_invalid_queries_of_the_overview_are_refused(watched: Watched) -> None:
    for query, status in (({"span": "2d"}, 400), ({"span": "banana"}, 400), ({"gateway": "nobody"}, 404)):
        assert watched.client.get("/server/history", **query).status == status
    for path in ("/?span=2w", "/overview/chart?of=secrets", "/overview/chart?span=2w"):
        assert watched.client.ask("GET", "/api/.." + path).status in (400, 404)


def test_a_gateway_that_is_killed_is_away_with_its_last_report(watched: Watched, browsers: ConsoleBrowsers) -> None:
    names = {gateway["name"] for gateway in watched.gateways()}
    watched.server.gateway_parts[1].kill()
    watched.until(lambda: len(watched.gateways("away")) == 1)
    (away,) = watched.gateways("away")
    assert away["clients"] == 2
    assert away["name"] in names
    assert away["delivered"]["p99_s"] > 0
    watched.until_busy_since(away["reported"], gateways=1)
    window = browsers.window(watched.console.url)
    page = window.open("/")
    expect(page.get_by_role("region", name="What is wrong")).to_contain_text("1 of 2 gateways are away")
    expect(page.get_by_role("region", name="Gateways").locator("tr", has_text="away")).to_contain_text(away["name"])
    watched.server.start_gateway(1)
    watched.until_busy_since(away["reported"])
    expect(page.get_by_role("region", name="What is wrong")).not_to_contain_text("away")
    watched.check_rates()
    window.check()
    window.context.close()


def test_a_store_that_is_killed_leaves_a_gap(watched: Watched) -> None:
    before = watched.newest()
    watched.server.store_part.restart()
    watched.until_busy_since(before)
    watched.check_rates()


def test_a_console_that_is_killed_begins_anew_and_says_so(watched: Watched, browsers: ConsoleBrowsers) -> None:
    before = watched.client.get("/server/history").json
    watched.console.restart()
    watched.until_busy_since(before["points"][-1]["time"])
    after = watched.client.get("/server/history").json
    assert before["since"] < before["points"][-1]["time"] < after["since"] < after["points"][0]["time"]
    assert watched.gateways("away") == []
    watched.check_rates()
    window = browsers.window(watched.console.url)
    page = window.open("/")
    said = page.get_by_role("region", name="Charts")
    expect(said).to_contain_text(
        f"Kept since {after['since'].replace('T', ' ').removesuffix('Z')} UTC, when the console"
    )
    window.check()
    window.context.close()
