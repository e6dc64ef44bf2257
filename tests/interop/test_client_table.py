"""Clients by other people, as programs of their own, over every transport and version that they know."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import IN_ALL_TOPOLOGIES, SharedServers
from tests.interop.client_table import ROWS, TRANSPORTS, Row, table
from tests.interop.programs import READY, TIMEOUT_S, LineSubscriber, Message, PahoClient, mark_ready, run
from tests.support.certificates import authority, vouched_for
from tests.support.server_process import ROOT, PenstockServer

JS = ROOT / "tests" / "interop" / "js"
PYTHON = {"paho-mqtt": "paho", "gmqtt": "gmqtt", "amqtt": "amqtt"}


@dataclass
class Place:
    """A server that listens on all transports."""

    server: PenstockServer
    urls: dict[str, str]
    ca: Path


@pytest.fixture(scope="module")
def place(shared_server: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Place:
    tmp_path = tmp_path_factory.mktemp("place")
    ca = authority(tmp_path, "authority")
    made = vouched_for(tmp_path, "server", "DNS:localhost", ca)
    path = tmp_path / "mqtt.sock"
    urls = [f"unix://{path}" if scheme == "unix" else f"{scheme}://localhost:0" for scheme in TRANSPORTS]
    settings = {"gateway.tls_certificate": made.certificate, "gateway.tls_key": made.key}
    server = shared_server(settings=settings | {"gateway.listen": ",".join(urls)})
    return Place(server, dict(zip(TRANSPORTS, server.urls, strict=True)), ca.certificate)


def mosquitto(url: str, version: int, ca: str, topic: str) -> list[Message]:
    """A subscriber, and a publisher for each QoS."""
    scheme, _, rest = url.partition("://")
    where = ["--unix", rest] if scheme == "unix" else ["-h", "localhost", "-p", rest.rpartition(":")[2]]
    where += ["-V", {4: "mqttv311", 5: "mqttv5"}[version], *(["--cafile", ca] if scheme == "mqtts" else [])]
    subscriber = LineSubscriber(["mosquitto_sub", *where, "-q", "2", "-t", READY, "-t", topic, "-F", "%t %p %q"])
    for qos in range(3):
        run("mosquitto_pub", *where, "-t", topic, "-q", str(qos), "-m", str(qos))
    return subscriber.messages(3)


def program(*command: str) -> list[Message]:
    done = subprocess.run(command, capture_output=True, timeout=2 * TIMEOUT_S, cwd=ROOT, check=False)
    assert done.returncode == 0, (command, done.stderr.decode())
    lines = done.stdout.decode().splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2].encode()) for line in lines]


@IN_ALL_TOPOLOGIES
@pytest.mark.parametrize("row", [row for row in ROWS if "Chromium" not in row.name], ids=lambda row: row.name)
def test_every_client_over_all_that_it_knows(place: Place, row: Row) -> None:
    name, transports, versions = row.name, row.transports, row.versions
    witness = PahoClient(place.server.port).connect().subscribe("table/#", 2)
    mark_ready(place.server.port)
    expected: list[Message] = []
    for transport in transports:
        for version in versions:
            topic = f"table/{transport}/{version}"
            echo = (place.urls[transport], str(version), str(place.ca), topic)
            if name.startswith("mosquitto"):
                found = mosquitto(place.urls[transport], version, str(place.ca), topic)
            elif name.startswith("MQTT.js"):
                found = program(node(), str(JS / "echo.js"), *echo)
            else:
                found = program(sys.executable, "tests/interop/echo.py", PYTHON[name], *echo)
            assert sorted(found) == [(topic, b"%d %d" % (qos, qos)) for qos in range(3)], (transport, version)
            expected += [(topic, b"%d" % qos) for qos in range(3)]
    assert sorted(witness.messages(len(expected))) == sorted(expected)


def node() -> str:
    found = shutil.which("node")
    assert found, "node is missing; apt-get install nodejs npm"
    assert (JS / "node_modules").exists(), "MQTT.js is missing; run `npm ci` in tests/interop/js"
    return found


def test_the_table_in_the_docs() -> None:
    assert table() in (ROOT / "docs" / "clients.md").read_text()
