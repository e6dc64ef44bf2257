"""Under whose name the console acts: the name that the store found, not the one that a request says."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
import pytest

from tests.conftest import ServerFactory
from tests.interop.test_console_process import ANYWHERE
from tests.support.audit_lines import wait_for_audit
from tests.support.console_process import WebClient, basic, console_url
from tests.support.mqtt_packet_client import Device, write_secret
from tests.support.server_process import PenstockServer

SECRET = "a secret of more than thirty-two bytes, or sixty-four as some want them"
RULES = """
[[rule]]
users = ["root"]
allow = ["publish", "retain", "subscribe", "replay", "read_log", "admin"]
topics = ["#", "$dead/#"]
"""


def token(user: str, lives_s: int = 3_600) -> str:
    return jwt.encode({"sub": user, "exp": int(time.time()) + lives_s}, SECRET, "HS256")


@pytest.fixture
def server(penstock_server: ServerFactory, tmp_path: Path) -> PenstockServer:
    (tmp_path / "rules.toml").write_text(RULES)
    secret = write_secret(tmp_path / "secret", SECRET)
    users = {"auth.jwt_secret_file": secret, "auth.permissions_file": tmp_path / "rules.toml"}
    return penstock_server(settings={**ANYWHERE, **users}, flush="async")


@pytest.mark.parametrize("sent", ["basic", "bearer", "login"])
def test_console_acts_under_the_tokens_subject(server: PenstockServer, sent: str) -> None:
    url = console_url(server)
    headers = {"Authorization": f"Bearer {token('root')}" if sent == "bearer" else basic("admin", token("root"))}
    if sent == "login":
        begun = WebClient(url).post("/session", {"user": "admin", "password": token("root")})
        assert begun.json["user"] == "root"
        headers = {"Cookie": begun.headers["set-cookie"].partition(";")[0], "X-CSRF-Token": begun.json["csrf_token"]}
    client = WebClient(url, **headers)
    assert client.get("/session").json["user"] == "root"
    assert client.post("/bans", {"kind": "user", "value": "mallory", "for_s": 60, "reason": "test"}).status == 204
    (ban,) = client.get("/bans").json["bans"]
    assert ban["set_by"] == "root by the console from 127.0.0.1"
    line = wait_for_audit(server, "banned")
    assert line["reason"] == "by root by the console from 127.0.0.1: test"
    assert client.ask("DELETE", "/bans/user/mallory").status == 204
    assert wait_for_audit(server, "ban_lifted")["reason"] == "by root by the console from 127.0.0.1"


def test_a_request_that_is_sent_again_with_a_newer_token_is_carried_out_once(server: PenstockServer) -> None:
    url = console_url(server)
    message = {"topic": "line/1", "payload": "x"}
    first, again = (
        WebClient(url, Authorization=f"Bearer {token('root', lives_s)}").post(
            "/messages", message, Idempotency_Key="order-7"
        )
        for lives_s in (3_600, 3_601)
    )
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json


def test_without_authentication_no_name_counts(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings=ANYWHERE, flush="async")
    client = WebClient(console_url(server), Authorization=basic("admin", "x"))
    assert client.get("/session").json["user"] == ""
    assert client.post("/bans", {"kind": "user", "value": "mallory", "for_s": 60}).status == 204
    (ban,) = client.get("/bans").json["bans"]
    assert ban["set_by"] == "a user without a name by the console from 127.0.0.1"


def test_a_client_that_is_refused_later_is_booked_as_the_tokens_subject(
    penstock_server: ServerFactory, tmp_path: Path
) -> None:
    """An MQTT client whose user name says one thing and whose token another."""
    secret = write_secret(tmp_path / "secret", SECRET)
    server = penstock_server(settings={"auth.jwt_secret_file": secret, "auth.client_ids": "%u-*"}, flush="async")
    refused = Device(server.port, "mallory-1", 5).connect("admin", token("alice"))
    assert refused.reason_code.is_failure
    assert wait_for_audit(server, "refused", client_id="mallory-1")["user"] == "alice"
