"""What the HTTP API shows and touches of clients, groups, delayed and retained messages, and the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sync import Client
from tests.conftest import ServerFactory
from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.interop.test_console_api import RULES, Site
from tests.interop.test_console_process import ANYWHERE, passwords
from tests.support.console_process import WebClient, basic, console_url
from tests.support.stores import wait_until


@pytest.fixture
def site(tmp_path: Path, start_client_store: StartStore) -> Iterator[Site]:
    site = Site(tmp_path, start_client_store())
    yield site
    site.console.close()


@pytest.mark.parametrize("gateways", ["0", "1"])
def test_an_admin_sees_and_ends_clients(penstock_server: ServerFactory, tmp_path: Path, gateways: str) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    file = passwords(tmp_path, root="s3c", reader="s3c")
    users = {"auth.password_file": file, "auth.permissions_file": rules}
    server = penstock_server(settings={**ANYWHERE, **users}, gateways=gateways)
    url = console_url(server)
    root, reader = (WebClient(url, Authorization=basic(name, "s3c")) for name in ("root", "reader"))
    device = PahoClient(server.port, 5, "root/ä", 3_600)
    device.client.username_pw_set("root", "s3c")
    device.connect()
    device.subscribe("line/+", 1)
    (found,) = root.get("/clients", online="true").json["clients"]
    assert (found["client_id"], found["user"], found["online"]) == ("root/ä", "root", True)
    path = "/clients/root/%C3%A4"
    assert root.get(path).json["subscribed"] == [{"topic_filter": "line/+", "qos": 1}]
    readers = root.get("/readers", topic="line/7").json
    assert [each["client_id"] for each in readers["sessions"]] == ["root/ä"]
    assert readers["next"] is None
    cursor = root.get("/messages", filter="line/7", limit=1).json["next"] or "AAAA"
    assert root.get("/readers", topic="line/7", after=cursor).kind == "bad-cursor"
    for method, below in (
        ("GET", "/clients"),
        ("GET", path),
        ("POST", path + "/disconnect"),
        ("DELETE", path),
        ("GET", "/bans"),
        ("DELETE", "/bans/user/root"),
        ("GET", "/server"),
        ("GET", "/server/figures"),
        ("GET", "/server/history"),
        ("GET", "/server/gateways"),
        ("GET", "/readers?topic=line/1"),
    ):
        refused = reader.ask(method, below, {} if method == "POST" else None)
        assert (refused.status, refused.kind) == (403, "not-permitted"), below
    assert root.post(path + "/disconnect", {"reason": "test"}).status == 204
    device.client.loop_stop()
    wait_until(lambda: not root.get("/clients", online="true").json["clients"], TIMEOUT_S)
    assert root.ask("DELETE", path).status == 204
    assert root.get(path).kind == "not-found"
    ban = {"kind": "user", "value": "mallory", "for_s": 60, "reason": "test"}
    assert root.post("/bans", ban).status == 204
    (listed,) = root.get("/bans").json["bans"]
    assert (listed["value"], listed["reason"]) == ("mallory", "test")
    assert listed["set_by"].startswith("root by the console")
    assert root.ask("DELETE", "/bans/user/mallory").status == 204
    assert root.ask("DELETE", "/bans/user/mallory").status == 404
    shown = root.get("/server").json
    assert shown["settings"]["store.flush"] == "sync"
    assert shown["console"]["refused"]["not-permitted"] >= 11
    figures = root.get("/server/figures", name="penstock_").json["figures"]
    assert len(figures) > 20


def test_groups(site: Site) -> None:
    site.publish("line/1", *map(str, range(5)))
    with (
        Client(site.store.url.replace("tcp://", "penstock://")) as client,
        client.subscribe("line/#", group="billing", start="earliest") as messages,
    ):
        next(iter(messages)).ack()
    (group,) = site.client.get("/groups").json["groups"]
    assert (group["group"], group["topic_filter"], group["next_offset"]) == ("billing", "line/#", 5)
    over = "?filter=line/%23"
    assert site.client.post(f"/groups/billing/move{over}", {"to": "@2"}).json["queue_offset"] == 2
    assert site.client.get("/groups").json["groups"][0]["lag"] == 3
    assert site.client.post(f"/groups/nobody/move{over}", {"to": "now"}).status == 404
    assert site.client.post(f"/groups/billing/move{over}", {"to": "banana"}).status == 422
    assert site.client.ask("DELETE", f"/groups/billing{over}").status == 204
    assert site.client.get("/groups").json["groups"] == []


def test_delayed_and_retained(site: Site) -> None:
    client = site.client
    client.post(
        "/messages", [{"topic": f"later/{i}", "payload": "x", "delay": 3_600 + i, "key": "k"} for i in range(5)]
    )
    first = client.get("/delayed", limit=3).json
    second = client.get("/delayed", limit=3, after=first["next"]).json
    rows = first["delayed"] + second["delayed"]
    assert [row["topic"] for row in rows] == [f"later/{i}" for i in range(5)]
    cancel = f"/delayed/{rows[0]['log_offset']}?due_ms={rows[0]['due_ms']}"
    assert client.ask("DELETE", cancel).status == 204
    assert client.ask("DELETE", cancel).status == 404
    assert len(client.get("/delayed").json["delayed"]) == 4
    site.publish("state/ä", "on", retain=True)
    site.publish("state/b", "off", retain=True)
    assert [each["payload"] for each in client.get("/retained", filter="state/#").json["messages"]] == ["off", "on"]
    assert client.ask("DELETE", "/retained/state/%C3%A4").status == 204
    wait_until(lambda: len(client.get("/retained", filter="#").json["messages"]) == 1, TIMEOUT_S)


def test_a_console_without_an_operators_token_has_no_admin(tmp_path: Path, start_client_store: StartStore) -> None:
    site = Site(tmp_path, start_client_store(wire__token="t"), wire__token="t")
    try:
        assert site.client.get("/clients").kind == "no-operator"
    finally:
        site.console.close()


# --- Grafana


def test_the_query_that_the_document_gives_to_grafana(site: Site) -> None:
    """The URL of docs/http.md, with Grafana's variables as it replaces them."""
    values = [21.5, 22.5, 24.0]
    site.client.post("/messages", [{"topic": "line/7/temp", "json": {"sensor": {"value": each}}} for each in values])
    site.publish("line/7/temp", "no number", '{"sensor": {"value": "hot"}}', '{"sensor": {"value": NaN}}')
    document = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    (query,) = re.findall(r"http://localhost:8080/api/v1(/series\?\S+)", document)
    filled = query.replace("${__from:date:iso}", "2020-01-01T00:00:00.000Z").replace("${__to:date:iso}", "now")
    found: Any = site.client.ask("GET", filled).json
    (point,) = found["points"]
    assert (point["min"], point["max"], point["last"], point["count"]) == (21.5, 24.0, 24.0, 3)
    assert point["value"] == pytest.approx(sum(values) / 3)
    assert (found["messages"], found["left_out"], found["is_complete"]) == (6, 3, True)
