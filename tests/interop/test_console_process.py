"""The console as a process: `penstock serve` starts it, and it ends with it; ports, logins, names of hosts."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import ServerFactory
from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S, run
from tests.support.console_process import ConsoleProcess, WebClient, basic, console_url
from tests.support.mqtt_packet_client import set_passwords
from tests.support.server_process import ROOT, PenstockServer
from tests.support.stores import wait_until

ANYWHERE = {"console.listen": "127.0.0.1:0"}


def console_of(server: PenstockServer) -> psutil.Process:
    children = psutil.Process(server.process.pid).children()
    (found,) = [child for child in children if "console" in child.cmdline()]
    return found


@pytest.mark.parametrize("gateways", ["0", "1"])
def test_serve_starts_it_and_both_end_together(penstock_server: ServerFactory, gateways: str) -> None:
    server = penstock_server(settings=ANYWHERE, gateways=gateways)
    client = WebClient(console_url(server))
    assert client.get("/api/docs").status == 200
    said = server.log_text()
    assert said.index("\nready mqtt://") < said.index("\nconsole http://")
    child = console_of(server)
    server.terminate()
    child.wait(TIMEOUT_S)
    assert "Traceback" not in server.log_text()


@pytest.mark.parametrize("gateways", ["0", "1"])
def test_console_ends_when_its_parent_is_killed(penstock_server: ServerFactory, gateways: str) -> None:
    server = penstock_server(settings=ANYWHERE, gateways=gateways)
    console_url(server)
    child = console_of(server)
    server.process.kill()
    child.wait(TIMEOUT_S)


def test_console_is_started_again_when_it_dies(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings=ANYWHERE)
    console_url(server)
    first = console_of(server)
    first.kill()
    wait_until(lambda: len(re.findall(r"^console http\S+\n", server.log_text(), re.MULTILINE)) == 2, TIMEOUT_S)
    assert console_of(server).pid != first.pid
    assert WebClient(console_url(server)).get("/api/docs").status == 200
    assert "console ended with -9: starting it again" in server.log_text()


def test_a_port_in_use_is_one_line_and_the_broker_goes_on(penstock_server: ServerFactory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = penstock_server(settings={"console.listen": address})
        wait_until(lambda: f"console {address}: cannot listen there" in server.log_text(), TIMEOUT_S)
        run("mosquitto_pub", "-p", str(server.port), "-t", "t", "-m", "1", "-q", "1")
        (line,) = [line for line in server.log_text().splitlines() if "cannot listen" in line]
        assert "--no-console" in line
        assert "starting it again" not in server.log_text()
        server.terminate()


@pytest.mark.parametrize("gateways", ["0", "1"])
def test_the_default_port_that_is_taken_gives_way_to_the_next_free_one(
    penstock_server: ServerFactory, gateways: str
) -> None:
    with ExitStack() as taken:
        with suppress(OSError):  # another program may have it
            taken.enter_context(socket.create_server(("127.0.0.1", 8080)))
        server = penstock_server(settings={"console.enabled": True}, gateways=gateways)
        url = console_url(server)
        port = int(url.rpartition(":")[2])
        assert 8080 < port <= 8100
        assert f"port 8080 is in use, so the console listens at port {port}" in server.log_text()
        assert WebClient(url).get("/api/docs").status == 200


def test_a_port_with_a_plus_may_be_the_next_one(tmp_path: Path, start_console: StartConsole) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        console = start_console(f"unix://{tmp_path}/no-store.sock", console__listen=f"127.0.0.1:{port}+")
        assert port < int(console.url.rpartition(":")[2]) <= port + 20
        assert f"port {port} is in use" in console.log_text()


def test_no_console(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    command = [sys.executable, "-m", "penstock", "serve", "--no-console", "--print-config"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "\nenabled = false\nlisten = " in re.sub(r"\n#.*", "", done.stdout.partition("[console]")[2])


def test_beyond_loopback_users_have_to_log_in(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    for gateways in ("0", "1"):
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "d"), "--gateways", gateways]
        done = subprocess.run(
            [*command, "--listen", "mqtt://127.0.0.1:0"],
            cwd=ROOT,
            env=environment | {"PENSTOCK_CONSOLE__LISTEN": "0.0.0.0:0"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 2
        assert "auth.password_file" in done.stderr
        assert "console.allow_open_beyond_loopback" in done.stderr


StartConsole = Callable[..., ConsoleProcess]


@pytest.fixture
def start_console(tmp_path: Path) -> Iterator[StartConsole]:
    started: list[ConsoleProcess] = []

    def start(store: str, **settings: object) -> ConsoleProcess:
        by_path = {path.replace("__", "."): value for path, value in settings.items()}
        started.append(ConsoleProcess(tmp_path, store, by_path))
        return started[-1]

    yield start
    for each in started:
        each.close()


def passwords(folder: Path, **users: str) -> Path:
    return set_passwords(folder / "passwords", **users)


def test_an_open_store_beyond_loopback_answers_nobody(
    start_client_store: StartStore, start_console: StartConsole
) -> None:
    console = start_console(start_client_store().url, console__listen="0.0.0.0:0")
    client = WebClient(console.url.replace("0.0.0.0", "127.0.0.1"))
    for headers in ({}, {"Authorization": basic("somebody", "x")}):
        refused = client.ask("GET", "/session", **headers)
        assert (refused.status, refused.kind) == (403, "open-store")


def test_logins(start_client_store: StartStore, start_console: StartConsole, tmp_path: Path) -> None:
    store = start_client_store(auth__password_file=passwords(tmp_path, bob="s3c"), auth__max_failures=3)
    console = start_console(store.url)
    client = console.client()
    assert client.get("/health").json["status"] == "ok"
    nobody = client.get("/session")
    assert (nobody.status, nobody.kind) == (401, "not-admitted")
    assert nobody.headers["www-authenticate"].startswith("Basic")
    by_password = client.ask("GET", "/session", Authorization=basic("bob", "s3c")).json
    assert (by_password["user"], by_password["csrf_token"]) == ("bob", "")
    for wrong in ("Basic %%%", "Basic " + base64.b64encode(b"\xff:x").decode(), "Digest x", "Bearer"):
        assert client.ask("GET", "/session", Authorization=wrong).kind == "bad-authorization"
    begun = client.post("/session", {"user": "bob", "password": "s3c"})
    assert begun.status == 201
    cookie = begun.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    logged_in = {"Cookie": cookie.partition(";")[0]}
    token = begun.json["csrf_token"]
    by_cookie = client.ask("GET", "/session", **logged_in).json
    assert (by_cookie["user"], by_cookie["csrf_token"]) == ("bob", token)
    message = {"topic": "t", "payload": "x"}
    for headers in ({}, {"X-CSRF-Token": token[:-1]}, {"X-CSRF-Token": "ä"}):
        assert client.post("/messages", message, **logged_in, **headers).kind == "csrf"
    assert client.post("/messages", message, **logged_in, X_CSRF_Token=token).status == 201
    assert client.ask("DELETE", "/session", **logged_in, X_CSRF_Token=token).status == 204
    assert client.ask("GET", "/session", **logged_in).status == 401
    statuses = [client.post("/session", {"user": "bob", "password": f"wrong-{i}"}).status for i in range(4)]
    assert statuses == [401, 401, 401, 429]
    late = client.ask("GET", "/session", Authorization=basic("bob", "no"))
    assert (late.kind, int(late.headers["retry-after"]) > 0) == ("too-many-failed-logins", True)
    assert client.ask("GET", "/session", Authorization=basic("bob", "s3c")).status == 200  # it is connected already


def test_a_changed_password_ends_a_login(
    start_client_store: StartStore, start_console: StartConsole, tmp_path: Path
) -> None:
    file = passwords(tmp_path, bob="s3c")
    store = start_client_store(auth__password_file=file)
    client = start_console(store.url).client()
    headers = {"Authorization": basic("bob", "s3c")}
    assert client.ask("GET", "/session", **headers).status == 200
    passwords(tmp_path, bob="other")
    store.process.send_signal(signal.SIGHUP)
    wait_until(lambda: client.ask("GET", "/session", **headers).status == 401, TIMEOUT_S)


def test_names_of_hosts_and_origins(start_client_store: StartStore, start_console: StartConsole) -> None:
    console = start_console(start_client_store().url, console__hosts="console.example,other.example:8443")
    client = console.client()
    for host in ("evil.example", "localhost.evil.example", "other.example", "", "127.0.0.1.evil.example:1"):
        refused = client.ask("GET", "/health", Host=host)
        assert (refused.status, refused.kind) == (421, "unknown-host"), host
    for host in ("localhost", "LOCALHOST:8080", "console.example", "other.example:8443", "[::1]:80", "10.1.2.3"):
        assert client.ask("GET", "/health", Host=host).status == 200, host
    message = {"topic": "t", "payload": "x"}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": f"http://{client.address}0"},
    ):
        refused = client.post("/messages", message, **headers)
        assert (refused.status, refused.kind) == (403, "foreign-origin"), headers
    assert client.post("/messages", message, Origin=f"http://{client.address}").status == 201
    too_large = client.ask("POST", "/messages", b"", Content_Length="9" * 19)
    assert (too_large.status, too_large.kind) == (413, "body-too-large")
    assert client.ask("POST", "/messages", b"", Content_Length="9" * 5_000).status == 400  # not even HTTP


def test_every_answer_has_the_headers_that_protect_a_page(
    start_client_store: StartStore, start_console: StartConsole
) -> None:
    client = start_console(start_client_store().url).client()
    for path in ("/health", "/api/docs", "/api/docs.css", "/nothing", "/api/openapi.json"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "cache-control" in headers
    page = client.get("/api/docs").body.decode()
    assert "POST /api/v1/messages" in page
    assert not re.search(r'(src|href)="(https?:)?//|<script|style="', page)
    assert client.get("/api/openapi.json").json["openapi"].startswith("3.1")


def test_the_store_goes_away_and_comes_back(start_client_store: StartStore, start_console: StartConsole) -> None:
    store = start_client_store()
    client = start_console(store.url).client()
    assert client.get("/health").status == 200
    store.kill()
    wait_until(lambda: client.get("/health").status == 503, TIMEOUT_S)
    store.start()
    wait_until(lambda: client.get("/health").status == 200, TIMEOUT_S)
    assert client.post("/messages", {"topic": "t", "payload": "x"}).status == 201


def test_console_ends_by_a_signal_although_a_stream_is_open(
    start_client_store: StartStore, start_console: StartConsole
) -> None:
    console = start_console(start_client_store().url)
    with console.client().events("/messages?filter=t"):
        console.process.send_signal(signal.SIGTERM)
        assert console.process.wait(TIMEOUT_S) == 0
    assert "Traceback" not in console.log_text(), console.log_text()
