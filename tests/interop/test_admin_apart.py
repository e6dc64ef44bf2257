"""The admin endpoints of a store and of gateways as processes of their own."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from loadtest.chaos.part import Part
from tests.conftest import ServerFactory
from tests.interop.test_admin import admin_url, eventually, get
from tests.support.server_process import free_port


class WithAdmin(Part):
    """One that is waited for until it has its admin endpoint, though it may be ready for nothing else."""

    says = "admin"

    def url(self) -> str:
        found: list[str] = re.findall(r"^admin (\S+)", self.log_text(), re.MULTILINE)
        return found[-1]


@pytest.fixture
def parts() -> Iterator[list[Part]]:
    started: list[Part] = []
    yield started
    for part in started:
        part.resume()
        part.kill()


def samples(url: str) -> dict[tuple[str, ...], float]:
    _, _, text = get(url + "/metrics")
    return {(s.name, *s.labels.values()): s.value for family in parse(text) for s in family.samples}


def test_a_gateway_says_what_it_waits_for(tmp_path: Path, parts: list[Part]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    command = ["gateway", "--store", address, "--listen", "mqtt://127.0.0.1:0", "--admin", "127.0.0.1:0"]
    gateway = WithAdmin(tmp_path / "gateway.log", command, {})
    parts.append(gateway)
    assert get(gateway.url() + "/healthz")[0] == 200
    status, _, text = get(gateway.url() + "/readyz")
    assert status == 503
    assert text.startswith("the store cannot be reached")
    assert text.count("\n") == 1
    assert samples(gateway.url())["penstock_link_connected",] == 0
    store = Part(tmp_path / "store.log", ["store", "--data", str(tmp_path / "data"), "--listen", address], {})
    parts.append(store)
    eventually(lambda: get(gateway.url() + "/readyz")[0] == 200)
    found = samples(gateway.url())
    assert (found["penstock_link_connected",], found["penstock_link_connects_total",]) == (1, 1)
    assert found["penstock_connections",] == 0
    store.kill()
    eventually(lambda: get(gateway.url() + "/readyz")[0] == 503)
    store.start()
    eventually(lambda: get(gateway.url() + "/readyz")[0] == 200)
    assert samples(gateway.url())["penstock_link_connects_total",] == 2
    gateway.terminate()


def test_a_gateway_that_waits_can_be_ended(tmp_path: Path, parts: list[Part]) -> None:
    command = ["gateway", "--store", f"tcp://127.0.0.1:{free_port()}", "--admin", "127.0.0.1:0"]
    parts.append(WithAdmin(tmp_path / "gateway.log", command, {}))
    parts[0].terminate()


@pytest.mark.topologies("shared port")
def test_several_processes_on_one_page(penstock_server: ServerFactory) -> None:
    server = penstock_server(admin="127.0.0.1:0")
    url = admin_url(server)
    assert get(url + "/healthz")[0] == get(url + "/readyz")[0] == 200
    found = samples(url)
    for name in ("store", "gateway-1", "gateway-2"):
        assert found["penstock_process_up", name] == 1
        assert found["process_resident_memory_bytes", name] > 10e6
    assert found["process_resident_memory_bytes", "supervisor"] > 10e6
    assert {key[1] for key in found if key[0] == "penstock_connections"} == {"gateway-1", "gateway-2"}
    assert {key[1] for key in found if key[0] == "penstock_log_bytes"} == {"store"}
    assert "penstock_delivery_seconds_bucket" in {key[0] for key in found}
    children = psutil.Process(server.process.pid).children()
    gateway = next(child for child in children if "gateway" in child.cmdline())
    gateway.send_signal(signal.SIGSTOP)
    status, _, text = get(url + "/readyz")
    assert status == 503
    assert re.fullmatch(r"gateway-[12]: it does not answer \(.*\)\n", text)
    assert sum(value for key, value in samples(url).items() if key[0] == "penstock_process_up") == 2
    gateway.send_signal(signal.SIGCONT)
    eventually(lambda: get(url + "/readyz")[0] == 200)
    server.terminate()


@pytest.mark.parametrize("command", [["gateway", "--store", "tcp://127.0.0.1:1"], ["store"]])
def test_not_beyond_loopback_unless_the_operator_says_so(tmp_path: Path, parts: list[Part], command: list[str]) -> None:
    """What is said of clients or of the wire does not count."""
    settings: dict[str, object] = {
        "auth.allow_anonymous": "true",
        "wire.allow_open_beyond_loopback": "true",
        "store.data": str(tmp_path / "data"),
        "wire.listen": "tcp://127.0.0.1:0",
    }
    command = [*command, "--admin", "0.0.0.0:0"]
    with pytest.raises(RuntimeError, match=r"admin 0\.0\.0\.0:0: reachable by other machines"):
        Part(tmp_path / "refused.log", command, settings)
    parts.append(WithAdmin(tmp_path / "allowed.log", command, settings | {"allow_admin_beyond_loopback": "true"}))
