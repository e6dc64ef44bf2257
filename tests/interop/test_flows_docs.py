"""The first flow of docs/flows.md, as a newcomer has it: `penstock serve --flows`, a message, a line in the file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import ROOT, PenstockServer, ServeOptions
from tests.support.stores import wait_until

TIMES = 2


@pytest.mark.parametrize("gateways", ["0", "1"])
def test_the_first_flow_of_the_page(tmp_path: Path, gateways: str) -> None:
    page = (ROOT / "docs" / "flows.md").read_text()
    (flow,) = re.findall(r"<!-- flow: run by tests/interop/test_flows_docs.py -->\n```toml\n(.*?)```", page, re.DOTALL)
    (publish,) = re.findall(r"^penstock (pub .*)$", page, re.MULTILINE)
    (expected,) = re.findall(r"^```json\n(.*?)\n```", page, re.MULTILINE | re.DOTALL)
    lines = tmp_path / "alarms.ndjson"
    file = tmp_path / "flows.toml"
    file.write_text(flow.replace("/tmp/alarms.ndjson", str(lines)))
    server = PenstockServer(
        tmp_path / "data", tmp_path / "log", ServeOptions({"flows": str(file), "gateways": gateways})
    )
    try:
        wait_until(lambda: f"flows {file}" in server.log_text(), 60)
        topic, payload = re.fullmatch(r"pub (\S+) -m '(.*)'", publish).groups()  # type: ignore[union-attr]
        for number in range(TIMES):
            command = [sys.executable, "-P", "-m", "penstock", "pub", "--url", server.url, topic, "-m", payload]
            subprocess.run(command, check=True)
            wait_until(lambda number=number: lines.read_text().count("\n") == number + 1, 60)  # type: ignore[misc]
            if number + 1 < TIMES:
                server.restart()
        found = json.loads(lines.read_text().splitlines()[-1])
        named = ("type", "subject", "datacontenttype", "data", "specversion")
        assert list(found) == list(json.loads(expected))
        assert [found[name] for name in named] == [json.loads(expected)[name] for name in named]
    finally:
        server.kill()
