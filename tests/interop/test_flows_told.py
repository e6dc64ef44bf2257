"""What a flow does is seen in the store's metrics, the commands, the console and its API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from penstock.sync import Client
from tests.conftest import ONE_PROCESS, ServerFactory
from tests.interop.programs import penstock, run
from tests.interop.test_admin import admin_url, get
from tests.support.console_process import WebClient, console_url
from tests.support.hook_server import HookServer
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until as until

PATIENCE_S = 60
KEY = "flow.alarms:plant/#"


@pytest.fixture
def hook() -> Iterator[HookServer]:
    hook = HookServer()
    yield hook
    hook.close()


def wait_until(condition: Any) -> None:
    until(condition, PATIENCE_S)


def figures(server: PenstockServer) -> dict[str, float]:
    _, _, text = get(admin_url(server) + "/metrics")
    samples = [sample for family in parse(text) for sample in family.samples]
    return {
        sample.name.removeprefix("penstock_flow_"): sample.value
        for sample in samples
        if sample.name.startswith("penstock_flow_") and sample.labels == {"group": KEY}
    }


def listed(server: PenstockServer, command: str) -> dict[str, Any]:
    store = f"unix://{server.data.absolute()}/console.sock"
    (row,) = json.loads(run(*penstock(command, "list", "--json", "--store", store)))
    assert isinstance(row, dict)
    return row


@ONE_PROCESS
def test_flow_is_reported_in_metrics_commands_and_console(
    penstock_server: ServerFactory, hook: HookServer, tmp_path: Path
) -> None:
    file = tmp_path / "flows.toml"
    file.write_text(f'[flow.alarms]\nfrom = "plant/#"\nto = "{hook.url}"\nretry_after_s = 0.01\nattempts = 2\n')
    settings = {"flows.file": file, "console.enabled": "true", "console.listen": "127.0.0.1:0"}
    server = penstock_server(settings=settings, admin="127.0.0.1:0")
    wait_until(lambda: f"flows {file}" in server.log_text())
    with Client(f"unix://{server.data.absolute()}/console.sock") as client:
        client.publish("plant/1", "taken")
        wait_until(lambda: figures(server).get("sent_messages_total") == 1)
        assert listed(server, "flow")["error"] is None
        hook.answer = lambda _: 500
        client.publish("plant/1", "refused twice")
        wait_until(lambda: figures(server)["dead_letters_total"] == 1)
        hook.answer = lambda _: 503
        client.publish("plant/1", "waiting")
        wait_until(lambda: figures(server)["away"] == 1)
        found = figures(server)
    assert found == {
        "sent_messages_total": 1,
        "failed_attempts_total": 2,
        "dead_letters_total": 1,
        "lost_records_total": 0,
        "outages_total": 1,
        "away": 1,
    }
    for row in (listed(server, "flow"), listed(server, "group")):
        assert (row["lag"], row["sent"], row["errors"], row["away"]) == (1, 1, 3, True)
        assert "answered 503" in row["error"]
    (group,) = WebClient(console_url(server)).get("/groups").json["groups"]
    assert (group["work"]["sent"], group["work"]["away"], group["work"]["lag"]) == (1, True, None)
    for page in ("/groups", "/group?name=flow.alarms&filter=plant/%23"):
        status, _, text = get(console_url(server) + page)
        assert status == 200
        assert "answered 503" in text
    hook.answer = lambda _: 204
    wait_until(lambda: figures(server)["away"] == 0)
    wait_until(lambda: listed(server, "flow")["sent"] == 2)
    assert "answered 503" in listed(server, "flow")["error"]
