"""Requests that schemathesis makes from the API's own document, against a server that they may damage."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.interop.test_console_process import ANYWHERE
from tests.support.console_process import WebClient, console_url
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

CHECKS = (
    "not_a_server_error,content_type_conformance,response_schema_conformance,status_code_conformance,"
    "unsupported_method,allow_header_conformance,use_after_free"
)
OPTIONS = {"workers": 1, "request-timeout": 10}
START_S, PER_EXAMPLE_S = 120, 10


@pytest.fixture
def server(penstock_server: ServerFactory) -> PenstockServer:
    """Whose console is an operator, as penstock serve has it, with something of each kind."""
    server = penstock_server(settings={**ANYWHERE, "console.max_page": 50, "console.max_pop_wait_s": 0})
    client = WebClient(console_url(server))
    for number in range(60):
        message = {"topic": f"line/{number % 7}", "payload": f'{{"n": {number}}}', "key": "k", "tag": "t"}
        assert client.post("/messages", [message]).status == 201
    assert client.post("/messages", [{"topic": f"later/{n}", "delay": 3_600} for n in range(60)]).status == 201
    assert (
        client.post("/messages", [{"topic": f"state/{n}", "retain": True, "payload": "x"} for n in range(60)]).status
        == 201
    )
    with (
        Client(f"unix://{server.data.absolute()}/console.sock") as sdk,
        sdk.subscribe("line/#", group="billing", start="earliest") as members,
    ):
        for received in islice(members, 30):
            received.reject("no use", wait=False)
        wait_until(lambda: client.get("/groups").json["groups"][0]["dead_letters"] == 30, TIMEOUT_S)
    assert client.post("/bans", {"kind": "user", "value": "mallory"}).status == 204
    return server


@pytest.fixture
def device(server: PenstockServer) -> Iterator[PahoClient]:
    device = PahoClient(server.port, 5, "device-1", 3_600)
    device.connect()
    device.subscribe("line/+", 1)
    yield device
    device.client.loop_stop()


class Schemathesis:
    """Runs of the program against one server, with one seed."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self._url = url
        self._folder = folder
        self._seed = seed

    def run(self, phases: str, examples: int) -> str:
        program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
        assert program, "pip install -e .[test]"
        options = {"phases": phases, "max-examples": examples, "seed": self._seed, "checks": CHECKS, **OPTIONS}
        command = [program, "run", f"{self._url}/api/openapi.json"]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        timeout_s = START_S + PER_EXAMPLE_S * examples
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
        return done.stdout


@pytest.mark.parametrize(
    ("examples", "seed"), [(10, 1), pytest.param(200, 2, marks=[pytest.mark.nightly, pytest.mark.slow])]
)
def test_all_operations(server: PenstockServer, device: PahoClient, tmp_path: Path, examples: int, seed: int) -> None:
    """Each of them by itself, and in the order of the links, while there is something to find by them."""
    runs = Schemathesis(console_url(server), tmp_path, seed)
    linked = runs.run("stateful", 5 * examples)
    (covered,) = re.findall(r"API Links: +(\d+) covered / \d+ selected", linked)
    assert int(covered) > 5, linked
    alone = runs.run("examples,coverage,fuzzing", examples)
    ((selected, total, tested),) = re.findall(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", alone)
    assert selected == total == tested, alone
    assert WebClient(console_url(server)).get("/health").status == 200
    assert "Traceback" not in server.log_text()
