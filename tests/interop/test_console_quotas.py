"""Quotas of rates hold over HTTP: by client, by user however it logs in, and by namespace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.conftest import ServerFactory
from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import Site
from tests.interop.test_console_process import ANYWHERE, passwords
from tests.support.console_process import Answered, WebClient, basic, console_url
from tests.support.mqtt_packet_client import write_secret
from tests.support.stores import wait_until

SECRET = "a secret of more than thirty-two bytes, or sixty-four as some want them"
BURST_MS = 5_000
StartSite = Callable[..., Site]


@pytest.fixture
def start_site(tmp_path: Path, start_client_store: StartStore) -> Iterator[StartSite]:
    """A store with alice, bob and tokens, and a console with these quotas."""
    sites: list[Site] = []

    def start(**quotas: int) -> Site:
        secret = write_secret(tmp_path / "secret", SECRET + "\n")
        file = passwords(tmp_path, alice="s3c", bob="s3c")
        store = start_client_store(auth__password_file=file, auth__jwt_secret_file=secret)
        bounds: dict[str, Any] = {f"quota__{name}": value for name, value in quotas.items()}
        sites.append(Site(tmp_path, store, quota__burst_ms=BURST_MS, **bounds))
        return sites[-1]

    yield start
    for each in sites:
        each.console.close()


def publish(client: WebClient, number: int = 1, payload: str = "x") -> Answered:
    message = {"topic": "t", "payload": payload}
    return client.post("/messages", message if number == 1 else [message] * number)


def bearer(site: Site, user: str, **claims: Any) -> WebClient:
    token = jwt.encode({"sub": user, "exp": int(time.time()) + 3_600, **claims}, SECRET, "HS256")
    return site.console.client(Authorization=f"Bearer {token}")


def check_refused(answer: Answered, setting: str) -> None:
    assert (answer.status, answer.kind) == (429, "publishes-too-fast"), answer
    assert f"quota.{setting} " in answer.json["detail"]
    assert int(answer.headers["retry-after"]) > 0


def test_a_client_may_publish_its_burst_and_then_its_rate(start_site: StartSite) -> None:
    site = start_site(client_messages_per_s=2)
    alice, bob = site.user("alice"), site.user("bob")
    assert publish(alice, 30).status == 201  # more than there is: it is paid back first
    check_refused(publish(alice), "client_messages_per_s")
    check_refused(publish(alice, 2), "client_messages_per_s")
    check_refused(alice.ask("DELETE", "/retained/t"), "client_messages_per_s")
    assert publish(bob).status == 201
    assert alice.get("/messages", filter="t").status == 200
    wait_until(lambda: publish(alice).status == 201, TIMEOUT_S)
    assert len(alice.get("/messages", filter="t", limit=1_000).json["messages"]) == 32


def test_bytes_count_too(start_site: StartSite) -> None:
    site = start_site(client_bytes_per_s=1_000)
    alice = site.user("alice")
    assert publish(alice, payload="x" * 100_000).status == 201
    check_refused(publish(alice), "client_bytes_per_s")


def test_a_user_is_one_however_it_logs_in(start_site: StartSite) -> None:
    """Also by a login's cookie and by several tokens, of which each is a client."""
    site = start_site(user_messages_per_s=1)
    assert publish(bearer(site, "alice"), 100).status == 201
    for client in (bearer(site, "alice", jti="2"), site.user("alice")):
        check_refused(publish(client), "user_messages_per_s")
    login = site.client.post("/session", {"user": "alice", "password": "s3c"})
    headers = {"Cookie": login.headers["set-cookie"].partition(";")[0], "X-CSRF-Token": login.json["csrf_token"]}
    check_refused(publish(site.console.client(**headers)), "user_messages_per_s")
    assert publish(site.user("bob")).status == 201


def test_refused_publish_keeps_no_idempotency_key(start_site: StartSite) -> None:
    """The same request goes through later."""
    site = start_site(client_messages_per_s=2)
    alice = site.user("alice")
    assert publish(alice, 20).status == 201
    message = {"topic": "once", "payload": "x"}
    check_refused(alice.post("/messages", message, Idempotency_Key="k"), "client_messages_per_s")
    wait_until(lambda: alice.post("/messages", message, Idempotency_Key="k").status == 201, TIMEOUT_S)
    assert len(alice.get("/messages", filter="once").json["messages"]) == 1


def test_the_console_of_serve_has_the_quotas_of_its_server(penstock_server: ServerFactory, tmp_path: Path) -> None:
    settings = {
        "auth.password_file": passwords(tmp_path, alice="s3c"),
        "quota.user_messages_per_s": 1,
        "quota.bound_default_namespace": True,
        "quota.namespace_bytes_per_s": 1_000_000,
    }
    server = penstock_server(settings=ANYWHERE | settings)
    alice = WebClient(console_url(server), Authorization=basic("alice", "s3c"))
    assert publish(alice, 50).status == 201
    check_refused(publish(alice), "user_messages_per_s")
