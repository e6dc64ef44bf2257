"""The admin endpoint of a real process, asked over real HTTP by any client."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from penstock.servers.admin_server import HEAD_BYTES, MOST_CONNECTIONS, MOST_OF_ADDRESS, WORKERS
from tests.conftest import ServerFactory
from tests.support.server_process import ROOT, PenstockServer

TIMEOUT_S = 20
BUSY_S = 4  # that this machine may be slower by


def admin_url(server: PenstockServer) -> str:
    found = re.search(r"^admin (http://\S+)\n(.*\n)*ready mqtt://", server.log_text(), re.MULTILINE)
    assert found, "no admin line before the ready line"
    return found[1]


def get(url: str, **headers: str) -> tuple[int, str, str]:
    """(status, content type, text)."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def server(penstock_server: ServerFactory) -> PenstockServer:
    return penstock_server(admin="127.0.0.1:0", flush="async")


@pytest.fixture
def url(server: PenstockServer) -> str:
    return admin_url(server)


def raw(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.port is not None
    connection = socket.create_connection((parts.hostname or "", parts.port), timeout=TIMEOUT_S)
    connection.settimeout(TIMEOUT_S)
    return connection


# --- the pages


def test_healthy_and_ready(url: str) -> None:
    assert get(url + "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
    assert get(url + "/readyz") == (200, "text/plain; charset=utf-8", "ready\n")


def test_other_pages_and_methods(url: str) -> None:
    assert get(url + "/")[0] == 404
    assert get(url + "/metrics/../etc/passwd")[0] == 404
    request = urllib.request.Request(url + "/metrics", data=b"x" * 100_000, method="POST")
    with pytest.raises(OSError, match=r"405|reset|Broken pipe"):
        urllib.request.urlopen(request, timeout=TIMEOUT_S)
    assert get(url + "/healthz")[0] == 200


def test_metrics_of_a_process_that_does_something(server: PenstockServer, url: str) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    received: list[bytes] = []
    client.on_message = lambda _, __, message: received.append(bytes(message.payload))
    client.on_connect = lambda client, *_: client.subscribe("a/#", 1)
    client.on_subscribe = lambda client, *_: client.publish("a/b", b"12345", 1)
    client.connect("127.0.0.1", server.port)
    client.loop_start()
    eventually(lambda: received == [b"12345"])
    status, content_type, text = get(url + "/metrics")
    client.disconnect()
    client.loop_stop()
    assert status == 200
    assert content_type.startswith("text/plain; version=")
    found = {(s.name, *s.labels.values()): s.value for family in parse(text) for s in family.samples}
    assert found["penstock_messages_received_total", "1"] == found["penstock_messages_sent_total", "1"] == 1
    assert found["penstock_sessions", "online"] == found["penstock_subscriptions",] == 1
    assert found["process_resident_memory_bytes",] > 10e6
    assert found["process_start_time_seconds",] == pytest.approx(time.time(), abs=2 * TIMEOUT_S)


def test_openmetrics_for_who_prefers_it(url: str) -> None:
    _, content_type, text = get(url + "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert "penstock_connections" in {family.name for family in parse_openmetrics(text)}


# --- when it goes wrong


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost:"], ids=["idle", "slow"])
def test_idle_and_slow_clients_hold_up_nobody(url: str, sent: bytes) -> None:
    others = []
    for _ in range(200):
        others.append(raw(url))
        others[-1].sendall(sent)
    for page in ("/healthz", "/metrics", "/readyz"):
        started_s = time.monotonic()
        assert get(url + page)[0] == 200
        assert time.monotonic() < started_s + 1 + BUSY_S
    for connection in others:
        connection.close()


def test_clients_that_read_nothing_hold_up_nobody(url: str) -> None:
    """Each has asked, and takes no answer: more of them than there are workers."""
    others = []
    for _ in range(WORKERS + 4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        connection.connect(("127.0.0.1", urlsplit(url).port))
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 2)
        others.append(connection)
    assert get(url + "/healthz")[0] == 200
    assert get(url + "/metrics")[0] == 200
    for connection in others:
        connection.close()


def test_the_oldest_idle_one_of_an_address_gives_way(url: str) -> None:
    first = raw(url)
    others = [raw(url) for _ in range(MOST_OF_ADDRESS)]
    assert first.recv(1) == b""
    others[-1].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert others[-1].recv(100).startswith(b"HTTP/1.0 200")
    for connection in (first, *others):
        connection.close()


def test_addresses_do_not_push_each_other_out(url: str) -> None:
    """All of 127.0.0.0/8 is this machine."""
    port = urlsplit(url).port
    kept = raw(url)
    others = []
    for _ in range(2 * MOST_OF_ADDRESS):
        connection = socket.socket()
        connection.bind(("127.0.0.2", 0))
        connection.connect(("127.0.0.1", port))
        others.append(connection)
    assert 2 * MOST_OF_ADDRESS < MOST_CONNECTIONS
    assert others[0].recv(1) == b""
    kept.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert kept.recv(100).startswith(b"HTTP/1.0 200")
    for connection in (kept, *others):
        connection.close()


def test_a_request_that_takes_too_long_is_ended(url: str) -> None:
    with raw(url) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        started_s = time.monotonic()
        while connection.fileno() >= 0 and time.monotonic() < started_s + TIMEOUT_S:
            connection.settimeout(0.5)
            try:
                connection.sendall(b"x")  # one byte at a time would keep any idle timeout waiting
                if connection.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() < started_s + TIMEOUT_S


@pytest.mark.parametrize("head", [b"GET /" + b"x" * 20_000, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000])
def test_a_head_that_is_too_large_ends_the_request(url: str, head: bytes) -> None:
    assert len(head) > HEAD_BYTES
    with raw(url) as connection:
        answer = b""
        try:
            connection.sendall(head)
            answer = connection.recv(100)
        except ConnectionError:
            pass
        assert b" 200 " not in answer
    assert get(url + "/healthz")[0] == 200


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\0", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n"])
def test_input_that_is_not_http_disturbs_nobody(server: PenstockServer, url: str, data: bytes) -> None:
    with raw(url) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1_000):
            pass
    assert get(url + "/healthz")[0] == 200
    assert "Traceback" not in server.log_text()


# --- starting and stopping


def test_admin_endpoint_stops_with_the_server(server: PenstockServer, url: str) -> None:
    server.terminate()
    with pytest.raises(OSError, match="refused"):
        raw(url)


def run_serve(data: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    command = [sys.executable, "-m", "penstock", "serve", f"--data={data}", "--listen=mqtt://127.0.0.1:0", *flags]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)


def complaint(completed: subprocess.CompletedProcess[str]) -> str:
    """The line that says why the server did not start; log lines may be around it."""
    assert completed.returncode == 1
    assert "ready" not in completed.stdout
    assert "Traceback" not in completed.stderr
    (line,) = [line for line in completed.stderr.splitlines() if line.startswith("penstock: ")]
    return line


def test_a_port_in_use(server: PenstockServer, url: str, tmp_path: Path) -> None:
    address = urlsplit(url).netloc
    line = complaint(run_serve(tmp_path / "other", f"--admin={address}"))
    assert line.startswith(f"penstock: admin {address}: cannot listen there (Address already in use); ")


def test_not_beyond_loopback_unless_the_operator_says_so(tmp_path: Path, penstock_server: ServerFactory) -> None:
    line = complaint(run_serve(tmp_path / "other", "--admin=0.0.0.0:0"))
    assert line.startswith("penstock: admin 0.0.0.0:0: reachable by other machines")
    server = penstock_server(admin="0.0.0.0:0", settings={"allow_admin_beyond_loopback": "true"})
    port = urlsplit(admin_url(server)).port
    assert get(f"http://127.0.0.1:{port}/readyz")[0] == 200


def test_the_loopback_of_ipv6(penstock_server: ServerFactory) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    url = admin_url(penstock_server(admin="[::1]:0"))
    assert url.startswith("http://[::1]:")
    assert get(url + "/readyz")[0] == 200


def test_without_the_setting_there_is_none(penstock_server: ServerFactory) -> None:
    assert "admin " not in penstock_server().log_text()
