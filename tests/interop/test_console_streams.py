"""When the console's streams end: with the login, with the token, and with the console."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import Site
from tests.interop.test_console_process import passwords
from tests.support.mqtt_packet_client import write_secret
from tests.support.stores import wait_until

SECRET = "a secret of more than thirty-two bytes, or sixty-four as some want them"
EVENTS = "text/event-stream"
LIVE = "/api/v1/messages?filter=a"
MANY_BYTES = 24 << 20
"""More than the sockets of both sides hold."""


@pytest.fixture
def site(tmp_path: Path, start_client_store: StartStore) -> Iterator[Site]:
    """A store with the user bob, and with tokens."""
    secret = write_secret(tmp_path / "secret", SECRET + "\n")
    file = passwords(tmp_path, bob="s3c")
    store = start_client_store(auth__password_file=file, auth__jwt_secret_file=secret, auth__jwt_leeway_s=0)
    site = Site(tmp_path, store)
    yield site
    site.console.close()


class LoggedIn:
    """A browser of bob, which can log out."""

    def __init__(self, site: Site) -> None:
        answer = site.client.post("/session", {"user": "bob", "password": "s3c"})
        assert answer.status == 201, answer
        self._site = site
        self.headers = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        self._csrf_token = answer.json["csrf_token"]

    def log_out(self) -> None:
        ended = self._site.client.ask("DELETE", "/session", **self.headers, X_CSRF_Token=self._csrf_token)
        assert ended.status == 204, ended


def begun(site: Site, path: str, accept: str, headers: dict[str, str]) -> tuple[HTTPConnection, HTTPResponse]:
    """A stream of which nothing is read yet."""
    connection = HTTPConnection(site.client.address, timeout=TIMEOUT_S)
    connection.request("GET", path, headers={"Accept": accept, **headers})
    return connection, connection.getresponse()


@pytest.mark.parametrize("path", [LIVE, "/topic/live?name=a"], ids=["api", "page"])
def test_logging_out_ends_live_streams(site: Site, path: str) -> None:
    bob, other = LoggedIn(site), LoggedIn(site)
    connection, stream = begun(site, path, EVENTS, bob.headers)
    kept, going_on = begun(site, LIVE, EVENTS, other.headers)
    try:
        assert stream.status == going_on.status == 200
        assert stream.readline() == b"retry: 1000\n"
        bob.log_out()
        assert stream.read() in (b"", b"\n")
        site.user("bob").post("/messages", {"topic": "a", "payload": "behind"})
        event = next(line for line in going_on if line.startswith(b"data"))
        assert json.loads(event.partition(b": ")[2])["payload"] == "behind"  # the other login of the same user
    finally:
        connection.close()
        kept.close()


def test_logging_out_ends_a_stream_of_stored_messages(site: Site) -> None:
    bob = site.user("bob")
    payload = "x" * (1 << 20)
    for _ in range(MANY_BYTES >> 20):
        assert bob.post("/messages", {"topic": "a", "payload": payload}).status == 201
    browser = LoggedIn(site)
    connection, stream = begun(site, LIVE, "application/x-ndjson", browser.headers)
    try:
        first = json.loads(stream.readline())
        assert first["payload"] == payload
        browser.log_out()
        received = len(stream.read())
        assert received < MANY_BYTES - len(payload)
    finally:
        connection.close()


def test_a_token_that_ends_ends_its_streams(site: Site) -> None:
    token = jwt.encode({"sub": "bob", "exp": int(time.time()) + 5}, SECRET, "HS256")
    client = site.console.client(Authorization=f"Bearer {token}")
    with client.events(LIVE) as events:
        site.user("bob").post("/messages", {"topic": "a", "payload": "before"})
        assert next(events)[1]["payload"] == "before"
        name: str = ""
        problem: Any = None
        while name != "problem":  # a stream that is busy ends too
            site.user("bob").post("/messages", {"topic": "a", "payload": "behind"})
            name, problem = next(events)
        assert (name, problem["status"]) == ("problem", 401)
        assert next(events, None) is None


def test_a_session_by_token_ends_with_it(site: Site) -> None:
    token = jwt.encode({"sub": "bob", "exp": int(time.time()) + 5}, SECRET, "HS256")
    answer = site.client.post("/session", {"user": "", "password": token})
    assert answer.status == 201
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    with site.client.events(LIVE, **cookie) as events:
        assert next(events)[0] == "problem"
        assert next(events, None) is None
    wait_until(lambda: site.client.ask("GET", "/session", **cookie).status == 401, TIMEOUT_S)
