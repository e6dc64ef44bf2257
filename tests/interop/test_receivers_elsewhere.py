"""Who has received a message, over HTTP, on the message's page, and at a store with tokens; and who may not ask."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from penstock.sdk.message_id import StorePlace, parse_message_id
from penstock.sync import Client
from store.wire.messages import Role
from store.wire.operator_messages import MessageReceivers
from tests.conftest import ServerFactory
from tests.interop.programs import PahoClient
from tests.interop.test_console_api import RULES
from tests.interop.test_console_process import passwords
from tests.interop.test_operators_elsewhere import TOKENS, at, operate
from tests.support.console_browser import ConsoleBrowsers
from tests.support.console_process import WebClient, basic, console_url
from tests.support.mqtt_packet_client import write_secret
from tests.support.server_process import PenstockServer
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import PeerClosed
from tests.support.stores import wait_until

PATIENCE_S = 60
CONSOLE = {"console.enabled": True, "console.listen": "127.0.0.1:0"}
SMALL_LOG = {
    "store.segment_bytes": 65_536,
    "store.retention_bytes": 262_144,
    "store.retention_check_s": 1,
    "gateway.maximum_packet_size_bytes": 16_384,
}


def socket_of(server: PenstockServer) -> str:
    return f"unix://{server.data.absolute()}/console.sock"


def test_the_api_says_it_to_admins_who_may_read_the_message(penstock_server: ServerFactory, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    users = {
        "auth.password_file": passwords(tmp_path, root="s3c", reader="s3c", alice="s3c"),
        "auth.permissions_file": rules,
    }
    url = console_url(server := penstock_server(settings={**CONSOLE, **users}, flush="async"))
    root = WebClient(url, Authorization=basic("root", "s3c"))
    message_id = root.post("/messages", {"topic": "line/1", "payload": "x"}).json["message_id"]
    path = f"/messages/{message_id}/receivers"
    with (
        Client(socket_of(server), user="root", password="s3c") as client,
        client.subscribe("line/1", group="billing", start="earliest") as members,
    ):
        next(iter(members))
        answer = root.get(path)
        assert answer.status == 200, answer
    (group,) = answer.json["groups"]
    assert (group["group"], group["topic_filter"], group["state"]) == ("billing", "line/1", "in_flight")
    assert (answer.json["message"]["topic"], answer.json["message"]["client_id"]) == ("line/1", None)
    assert (answer.json["sessions"], answer.json["next"]) == ([], None)
    for user in ("reader", "alice"):
        refused = WebClient(url, Authorization=basic(user, "s3c")).get(path)
        assert (refused.status, refused.kind) == (403, "not-permitted")
    place, log_offset = parse_message_id(message_id)
    wrong = {"rubbish": "bad-message-id", place.message_id(log_offset + 8): "no-such-message"}
    for each, kind in wrong.items():
        assert root.get(f"/messages/{each}/receivers").kind == kind
    assert root.get(path, after="AAAA").kind == "bad-cursor"


def test_what_retention_dropped_is_said_to_be_gone(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={**CONSOLE, **SMALL_LOG}, flush="async")
    web = WebClient(console_url(server))
    with Client(socket_of(server)) as client:
        path = f"/messages/{client.publish('line/1', b'first').message_id}/receivers"
        assert web.get(path).status == 200
        client.publish_many([("line/2", os.urandom(10_000)) for _ in range(100)])
        wait_until(lambda: web.get(path).status == 404, PATIENCE_S)
    answer = web.get(path)
    assert answer.kind == "no-such-message"
    assert "retention has dropped this message; the log begins at" in answer.json["detail"]


def test_a_page_of_the_console_shows_it(browsers: ConsoleBrowsers, penstock_server: ServerFactory) -> None:
    server = penstock_server(settings=CONSOLE, flush="async")
    away = PahoClient(server.port, 5, "away/<b>", 600).connect().subscribe("line/+", 1)
    away.client.disconnect()
    witness = PahoClient(server.port, 5, "here", 600).connect().subscribe("line/1", 1)
    PahoClient(server.port, 5, "sender").connect().publish("line/1", [b"x"], 1)
    assert witness.messages(1) == [("line/1", b"x")]
    window = browsers.window(console_url(server))
    page = window.open("/topic?name=line/1")
    page.locator("li[id^=m] .preview").first.click()
    page.locator(".one-message a.mono").first.click()
    table = page.get_by_role("region", name="Sessions that receive it")
    expect(table.locator("tbody tr")).to_have_count(2)
    expect(table).to_contain_text("away/<b>line/+1waits for itaway")
    expect(page.get_by_role("heading", name="Who has received it")).to_be_visible()
    window.check()
    plain = browsers.window(console_url(server), scripts=False).open(page.url.removeprefix(console_url(server)))
    plain.get_by_role("link", name="Who has received it").click()
    expect(plain.get_by_role("region", name="Sessions that receive it")).to_contain_text("away/<b>")


def test_a_store_with_tokens_answers_operators_alone(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path, settings={f"wire.{role}_token": token for role, token in TOKENS.items()})
    try:
        with Client(store.url.replace("tcp", "penstock"), token=TOKENS["client"]) as client:
            message_id = client.publish("line/1", b"x").message_id
        file = write_secret(tmp_path / "token", TOKENS["operator"])
        traced = operate("trace", message_id, "--json", *at(store, file))
        assert traced.returncode == 0, traced.stderr
        assert json.loads(traced.stdout)["topic"] == "line/1"
        _, log_offset = parse_message_id(message_id)
        other = operate("trace", StorePlace.of("192.0.2.7", 7700).message_id(log_offset), *at(store, file))
        assert "is of the store at 192.0.2.7:7700, and this is the one at 127.0.0.1:" in other.stderr
        guess = operate("trace", message_id, *at(store, write_secret(tmp_path / "guess", TOKENS["client"])))
        assert (guess.returncode, "not the token of a operator" in guess.stderr) == (1, True), guess.stderr
        peer = store.connect("ann", Role.CLIENT, TOKENS["client"])
        with pytest.raises(PeerClosed):
            peer.call(MessageReceivers(log_offset, 0))
    finally:
        store.close()
