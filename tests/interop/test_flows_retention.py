"""Retention does not wait for a flow whose sink is away: the flow says what it lost, and brings the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from penstock.sync import Client
from store.files.segment import segment_paths
from tests.interop.conftest import StartStore
from tests.interop.programs import penstock, run
from tests.support.flows_part import FlowsPart
from tests.support.hook_server import HookServer
from tests.support.stores import wait_until as until

PATIENCE_S = 60
SMALL: dict[str, object] = {
    "store__segment_bytes": 262_144,
    "store__retention_bytes": 262_144,
    "store__retention_check_s": 1,
    "gateway__maximum_packet_size_bytes": 65_536,
}


def wait_until(condition: Any) -> None:
    until(condition, PATIENCE_S)


def test_what_retention_dropped_before_a_flow_took_it_is_told(start_client_store: StartStore, tmp_path: Path) -> None:
    store, hook = start_client_store(**SMALL), HookServer()
    text = f'[flow.alarms]\nfrom = "plant/#"\nto = "{hook.url}"\nformat = "cloudevents-batch"\n'
    flows = FlowsPart(store, tmp_path, text)

    def row() -> dict[str, Any]:
        (found,) = json.loads(run(*penstock("flow", "list", "--json", "--store", store.url)))
        assert isinstance(found, dict)
        return found

    try:
        wait_until(lambda: "connected" in flows.log_text() and row()["consumers"] == 1)
        run(*penstock("flow", "pause", "alarms", "--store", store.url))
        number = 0
        with Client(store.url.replace("tcp://", "penstock://")) as client:
            while min(int(path.stem) for path in segment_paths(store.data / "log")) < 1_000_000:
                client.publish_many([("plant/1", b"%d" % i) for i in range(number, number + 500)])
                number += 500
        run(*penstock("flow", "resume", "alarms", "--store", store.url))
        wait_until(lambda: hook.taken and row()["lag"] == 0)
        found = [event["data"] for request in hook.taken for event in json.loads(request.body)]
        assert len(set(found)) == len(found)
        assert max(found) == number - 1
        wait_until(lambda: "were gone before it took them" in (row()["error"] or ""))
        assert "flow alarms: messages were gone before it took them: " in flows.log_text()
        flows.terminate()
        (lost,) = re.findall(r"flow alarms: .* (\d+) lost", flows.log_text())
        assert int(lost) == number - len(found) > 0
    finally:
        flows.kill()
        hook.close()
