"""Logins to the console by OpenID Connect, with a certified provider as a program and a real browser."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from loadtest.ports import STOP_TIMEOUT_S, free_port
from tests.conftest import ServerFactory
from tests.interop.test_console_process import passwords
from tests.support.audit_lines import wait_for_audit
from tests.support.console_browser import ConsoleBrowsers
from tests.support.console_process import WebClient, console_url
from tests.support.server_process import PenstockServer

JS = Path(__file__).parent / "js"
SECRET = "what only the console and the provider know"
RULES = """
[[rule]]
users = ["operator"]
allow = ["publish", "subscribe", "replay", "read_log", "admin"]
topics = ["#", "$dead/#"]

[[rule]]
users = ["sso:alice"]
allow = ["publish", "subscribe", "replay"]
topics = ["of/alice/#"]
"""


@contextmanager
def provider_for(redirect_uri: str) -> Iterator[str]:
    assert (JS / "node_modules" / "oidc-provider").exists(), "run `npm ci` in tests/interop/js"
    command = ["node", "provider.mjs", redirect_uri]
    environment = os.environ | {"CLIENT_SECRET": SECRET}
    with subprocess.Popen(command, cwd=JS, env=environment, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            for line in running.stdout:
                if found := re.match(rb"ready (\S+)", line):
                    break
            else:
                raise AssertionError("the provider did not start")
            yield found[1].decode()
        finally:
            running.kill()
            running.wait(STOP_TIMEOUT_S)


@pytest.fixture
def server(penstock_server: ServerFactory, tmp_path: Path) -> Iterator[PenstockServer]:
    (tmp_path / "rules.toml").write_text(RULES)
    secret = tmp_path / "client.secret"
    secret.touch(0o600)
    secret.write_text(SECRET + "\n")
    port = free_port()
    with provider_for(f"http://127.0.0.1:{port}/login/oidc/callback") as issuer:
        yield penstock_server(
            settings={
                "console.listen": f"127.0.0.1:{port}",
                "console.oidc_issuer": issuer,
                "console.oidc_client_id": "penstock",
                "console.oidc_client_secret_file": secret,
                "console.oidc_name": "Example Ltd",
                "auth.jwt_keys_url": f"{issuer}/jwks",
                "auth.jwt_issuer": issuer,
                "auth.jwt_audience": "penstock",
                "auth.jwt_keys_url_prefix": "sso:",
                "auth.password_file": passwords(tmp_path, operator="s3c"),
                "auth.permissions_file": tmp_path / "rules.toml",
            },
            flush="async",
        )


def logged_in(browsers: ConsoleBrowsers, url: str, user: str, path: str = "/") -> Page:
    """By the forms of the provider: its login, and its question whether the console may know who it is."""
    page = browsers.window(url).open(path)
    page.get_by_role("link", name="Log in with Example Ltd").click()
    page.locator("input[name=login]").fill(user)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.locator("button[type=submit]", has_text=re.compile("continue", re.IGNORECASE)).click()
    return page


def test_a_user_of_the_provider_has_the_rights_of_its_name(browsers: ConsoleBrowsers, server: PenstockServer) -> None:
    page = logged_in(browsers, console_url(server), "alice", "/topics?prefix=of/alice/")
    expect(page.locator("h1")).to_have_text("Topics")
    assert page.url == console_url(server) + "/topics?prefix=of/alice/"
    expect(page.locator("header")).to_contain_text("sso:alice")
    cookies = {cookie["name"]: cookie for cookie in page.context.cookies()}
    assert cookies["penstock_session"]["sameSite"] == "Strict"
    assert cookies["penstock_session"]["httpOnly"] is True
    assert "penstock_sign_on" not in cookies
    assert 3_000 < cookies["penstock_session"]["expires"] - page.evaluate("Date.now() / 1000") <= 43_200
    line = wait_for_audit(server, "peer_connected", user="sso:alice")
    assert line["address"].startswith("127.0.0.1")
    client = WebClient(console_url(server), Cookie=f"penstock_session={cookies['penstock_session']['value']}")
    assert client.get("/session").json["prefixes"] == ["of/alice/"]
    assert client.post("/messages", {"topic": "of/alice/1", "payload": "x"}).kind == "csrf"
    csrf = client.get("/session").json["csrf_token"]
    assert client.post("/messages", {"topic": "of/alice/1", "payload": "x"}, X_CSRF_Token=csrf).status == 201
    assert client.post("/messages", {"topic": "of/bob/1", "payload": "x"}, X_CSRF_Token=csrf).status == 403
    assert client.get("/server").status == 403
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    assert client.get("/session").status == 401


def test_a_user_of_the_provider_with_a_local_users_name_is_somebody_else(
    browsers: ConsoleBrowsers, server: PenstockServer
) -> None:
    page = logged_in(browsers, console_url(server), "operator")
    expect(page.locator("header")).to_contain_text("sso:operator")
    expect(page.locator("main")).to_contain_text("You may read 0 topics")
    cookie = next(each["value"] for each in page.context.cookies() if each["name"] == "penstock_session")
    client = WebClient(console_url(server), Cookie=f"penstock_session={cookie}")
    assert client.get("/server").status == 403
    assert client.get("/session").json["readable"] == []
