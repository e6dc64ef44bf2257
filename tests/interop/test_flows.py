"""Flows at work: a real store, `penstock flow run`, and servers and files as their sinks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sync import Client
from tests.support.flows_fixtures import store as store
from tests.support.flows_part import FlowsPart, letters
from tests.support.hook_server import CUT, SILENT, HookServer
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 60


def wait_until(condition: Any) -> None:
    until(condition, PATIENCE_S)


@pytest.fixture
def hook() -> Iterator[HookServer]:
    hook = HookServer()
    yield hook
    hook.close()


@pytest.fixture
def client(store: StoreProcess) -> Iterator[Client]:
    with Client(store.url.replace("tcp://", "penstock://")) as client:
        yield client


@pytest.fixture
def started(store: StoreProcess, tmp_path: Path) -> Iterator[Any]:
    parts: list[FlowsPart] = []

    def start(text: str, environment: dict[str, str] | None = None) -> FlowsPart:
        parts.append(FlowsPart(store, tmp_path, text, environment))
        wait_until(lambda: (found := groups(store)) and all(row["consumers"] for row in found))
        return parts[-1]

    yield start
    for part in parts:
        part.kill()


def groups(store: StoreProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = command_json("flow", "list", "--store", store.url, "--json")
    return found


def command_json(*arguments: str) -> Any:
    command = [sys.executable, "-P", "-m", "penstock", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def flow(to: str, more: str = "") -> str:
    return f'[flow.alarms]\nfrom = "plant/#"\nto = "{to}"\n{more}\n'


def test_flow_sends_signed_cloudevents(started: Any, hook: HookServer, client: Client) -> None:
    more = (
        'where = "json.celsius > 90"\ntype = "com.example.alarm"\nsign = { env = "HOOK_KEY" }\n'
        'map = { topic = "alarms/{levels[1]}", payload = "{json.celsius}" }'
    )
    started(flow(hook.url, more), {"HOOK_KEY": "whsec_" + base64.b64encode(b"key").decode()})
    receipts = [client.publish(f"plant/{i}/temp", json.dumps({"celsius": 85 + i})) for i in range(10)]
    client.publish("plant/x/temp", "nonsense")
    wait_until(lambda: len(hook.taken) == 4 and letters(client))
    events = {str(request.event["id"]): request.event for request in hook.taken}
    assert sorted(events) == sorted(receipt.message_id for receipt in receipts[6:])
    event = events[receipts[6].message_id]
    assert (event["type"], event["subject"], event["data"]) == ("com.example.alarm", "alarms/6", 91)
    for request in hook.taken:
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
        expected = base64.b64encode(hmac.digest(b"key", signed, hashlib.sha256)).decode()
        assert request.headers["webhook-signature"] == f"v1,{expected}"
        assert request.headers["webhook-id"] == request.event["id"]
    ((topic, reason),) = letters(client)
    assert topic == "$dead/flow.alarms/plant/x/temp"
    assert "the payload is not JSON" in reason


def test_a_batch_has_many_events_and_one_that_is_refused_is_found(
    started: Any, hook: HookServer, client: Client
) -> None:
    hook.answer = lambda request: 400 if b"bad" in request.body else 200
    started(flow(hook.url, 'format = "cloudevents-batch"\nbatch = 50'))
    client.publish_many([("plant/1/temp", b"bad" if i == 70 else b"%d" % i) for i in range(200)])
    wait_until(lambda: sum(len(json.loads(request.body)) for request in hook.taken) == 199 and letters(client))
    assert len(hook.taken) < 199
    ((_, reason),) = letters(client)
    assert "answered 400 Bad Request: as it was told" in reason


def test_binary_events_and_headers_that_are_secret(started: Any, hook: HookServer, client: Client) -> None:
    more = 'format = "cloudevents-binary"\nheaders = { Authorization = { env = "TOKEN" } }'
    flows = started(flow(hook.url, more), {"TOKEN": "Bearer very-secret"})
    client.publish("plant/1/temp", b"\xff\x00")
    wait_until(lambda: hook.taken)
    (request,) = hook.taken
    assert request.body == b"\xff\x00"
    assert request.headers["ce-subject"] == "plant/1/temp"
    assert request.headers["authorization"] == "Bearer very-secret"
    assert "very-secret" not in flows.log_text()


def test_a_sink_that_fails_is_tried_again_and_then_it_is_a_dead_letter(
    started: Any, hook: HookServer, client: Client
) -> None:
    hook.answer = lambda request: 500 if request.event["subject"] == "plant/bad" else 200
    started(flow(hook.url, "attempts = 3\nretry_after_s = 0.05"))
    client.publish("plant/bad", "1")
    client.publish("plant/good", "1")
    wait_until(lambda: letters(client))
    ((_, reason),) = letters(client)
    assert "answered 500" in reason
    assert "3 times" in reason
    subjects = Counter(str(request.event["subject"]) for request in hook.requests)
    assert subjects == {"plant/bad": 3, "plant/good": 1}


@pytest.mark.parametrize("how", ["shut", "cut", "silent", "busy", "refuses the token"])
def test_while_the_sink_is_away_nothing_is_lost_and_nothing_counts(
    started: Any, hook: HookServer, client: Client, store: StoreProcess, how: str
) -> None:
    answers: dict[str, Any] = {
        "cut": CUT,
        "silent": SILENT,
        "busy": (503, {"Retry-After": "1"}),
        "refuses the token": 401,
    }
    flows = started(flow(hook.url, "timeout_s = 0.5\nattempts = 1"))
    if how == "shut":
        hook.shut()
    else:
        hook.answer = lambda _: answers[how]
    client.publish_many([("plant/1/temp", b"%d" % i) for i in range(300)])
    wait_until(lambda: "it waits for it" in flows.log_text())
    wait_until(lambda: how == "shut" or len(hook.requests) >= 3)
    (row,) = groups(store)
    assert row["lag"] >= 280
    hook.answer = lambda _: 200
    if how == "shut":
        hook.open()
    wait_until(lambda: {request.event["data"] for request in hook.taken} == set(range(300)))
    wait_until(lambda: groups(store)[0]["lag"] == 0)
    assert letters(client) == []


def test_retry_after_is_respected(started: Any, hook: HookServer, client: Client) -> None:
    hook.answer = lambda _: (429, {"Retry-After": "3600"})
    started(flow(hook.url, "concurrency = 1"))
    client.publish_many([("plant/1/temp", b"%d" % i) for i in range(10)])
    wait_until(lambda: hook.requests)
    client.publish("plant/1/temp", "more")
    assert len(hook.requests) == 1


def test_a_redirect_to_another_host_is_not_followed(started: Any, hook: HookServer, client: Client) -> None:
    other = HookServer()
    try:
        here = "/elsewhere"
        hook.answer = lambda request: (308, {"Location": here}) if request.path == "/hook" else 200
        flows = started(flow(hook.url))
        client.publish("plant/1/temp", "1")
        wait_until(lambda: [request.path for request in hook.taken] == ["/elsewhere"])
        hook.answer = lambda _: (307, {"Location": other.url})
        client.publish("plant/1/temp", "2")
        wait_until(lambda: "follows only 307 and 308 to the same host" in flows.log_text())
        assert other.requests == []
    finally:
        other.close()


def test_a_name_that_means_a_metadata_service_is_not_connected_to(started: Any, client: Client) -> None:
    flows = started(flow("http://169.254.169.254/latest/meta-data/"))
    client.publish("plant/1/temp", "1")
    wait_until(lambda: "169.254.169.254 is link-local or a metadata service" in flows.log_text())


def test_a_file_has_a_line_for_each_message(started: Any, client: Client, store: StoreProcess, tmp_path: Path) -> None:
    path = tmp_path / "out" / "readings.ndjson"
    path.parent.mkdir()
    path.write_bytes(b'{"whole": 1}\n{"torn": ')
    started(flow(f"file://{path}", 'format = "raw"\nrotate_bytes = 20000'))
    client.publish_many([(f"plant/{i % 3}/temp", b"%d" % i) for i in range(1_000)])
    wait_until(lambda: groups(store)[0]["lag"] == 0)
    files = path.parent.glob("readings*.ndjson")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(lines) == 1_001
    assert sorted(line["json"] for line in lines if "json" in line) == list(range(1_000))
    assert len(list(path.parent.glob("readings-*.ndjson"))) >= 1


def test_messages_go_to_other_topics_of_the_store(started: Any, client: Client) -> None:
    topic = "{levels[1] == '9' ? 'plant/9/temp' : 'out/' + levels[1]}"
    started(
        '[flow.copy]\nfrom = "plant/+/temp"\nstart = "now"\nto = "penstock:"\n'
        f'map = {{ topic = "{topic}", headers = {{ by = "flow" }} }}'
    )
    client.publish_many([(f"plant/{i % 3}/temp", b"%d" % i) for i in range(100)])
    client.publish("plant/9/temp", b"x")
    wait_until(lambda: len(list(client.read("out/#"))) == 100 and letters(client))
    found = list(client.read("out/#"))
    assert sorted(int(message.payload) for message in found) == list(range(100))
    assert found[0].headers["by"] == "flow"
    ((_, reason),) = letters(client)
    assert "would come back to this flow" in reason


def test_a_paused_flow_sends_nothing_until_it_goes_on(
    started: Any, hook: HookServer, client: Client, store: StoreProcess
) -> None:
    flows = started(flow(hook.url))
    command = [sys.executable, "-P", "-m", "penstock", "flow"]
    subprocess.run([*command, "pause", "alarms", "--store", store.url], check=True)
    client.publish("plant/1/temp", "1")
    flows.restart()
    wait_until(lambda: groups(store)[0]["consumers"] == 1)
    (row,) = groups(store)
    assert (row["flow"], row["paused"], row["lag"]) == ("alarms", True, 1)
    assert hook.requests == []
    subprocess.run([*command, "resume", "alarms", "--store", store.url], check=True)
    wait_until(lambda: hook.taken)


def test_a_trial_says_what_a_flow_would_do_and_sends_nothing(
    store: StoreProcess, hook: HookServer, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "flows.toml"
    file.write_text(
        flow(hook.url, 'where = "json.c > 1"\nmap = { payload = "{json.c}" }').replace("plant/#", "plant/+")
    )
    client.publish_many([("plant/1", b'{"c": %d}' % i) for i in range(150)])
    client.publish("plant/1", b"x")
    (trial,) = command_json("flow", "test", str(file), "--store", store.url, "--json")
    assert [trial[name] for name in ("looked_at", "passed", "left_out", "dead")] == [100, 99, 0, 1]
    assert trial["begins"].startswith("now")
    assert trial["messages"][-2] == {
        "topic": "plant/1", "outcome": "sent", "becomes": "plant/1", "payload": "149", "why": "",
    }  # fmt: skip
    assert "not JSON" in trial["messages"][-1]["why"]
    assert hook.requests == []
    assert groups(store) == []


def test_a_wrong_flow_is_told_before_anything_starts(store: StoreProcess, tmp_path: Path) -> None:
    file = tmp_path / "flows.toml"
    file.write_text(flow("https://example.test", 'where = "jsn.c > 1"'))
    command = [sys.executable, "-P", "-m", "penstock", "flow", "run", str(file), "--store", store.url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "flow.alarms.where: character 4: undeclared reference to 'jsn.c'" in ran.stderr


def test_a_flow_that_the_store_refuses_ends_alone(started: Any, hook: HookServer, client: Client) -> None:
    client.publish("line/1/temp", "1")
    flows = started(flow(hook.url) + '[flow.late]\nfrom = "line/+/temp"\nstart = "earliest"\nto = "file:///dev/null/x"')
    wait_until(lambda: "ERROR   penstock.flows: flow late: " in flows.log_text())
    client.publish("plant/1/temp", "1")
    wait_until(lambda: hook.taken)
