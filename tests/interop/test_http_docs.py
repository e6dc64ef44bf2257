"""The curl lines of docs/http.md that consume a group, as a newcomer types them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_console_api import Site
from tests.support.http_group import HttpGroup
from tests.support.server_process import ROOT
from tests.support.store_process import StoreProcess

RUN = r"<!-- curl: run by tests/interop/test_http_docs.py -->\n```sh\n(.*?)```\n\n```json\n(.*?)```"


@pytest.mark.catalogue("R78")
def test_the_lines_that_consume_a_group(tmp_path: Path) -> None:
    assert shutil.which("curl"), "curl is missing"
    store = StoreProcess(tmp_path)
    site = Site(tmp_path, store)
    ((lines, shown),) = re.findall(RUN, (ROOT / "docs" / "http.md").read_text(), re.DOTALL)
    handle = "HANDLE"

    def run(line: str) -> Any:
        command = line.replace("http://127.0.0.1:8080", site.console.url).replace("HANDLE", handle)
        done = subprocess.run(["sh", "-c", f"{command} -s"], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout)

    try:
        pop, extend, ack = lines.splitlines()
        HttpGroup(site.client, "billing", "line/#").pop()
        assert site.client.post("/messages", {"topic": "line/7/temp", "payload": "21.5"}).status == 201
        (popped,) = run(pop)["messages"]
        ((expected,),) = json.loads(shown).values()
        assert (popped.keys(), popped["message"].keys()) == (expected.keys(), expected["message"].keys())
        assert len(expected["handle"]) == len(popped["handle"])
        handle = popped["handle"]
        for line in (extend, ack):
            assert run(line) == {"settled": 1, "stale": []}
        assert run(ack)["status"] == 410
    finally:
        site.console.close()
        store.close()
