"""What nobody should send to the console: each is a clear 4xx with a remedy, and disturbs nothing."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import Site
from tests.support.stores import wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from tests.support.store_process import StoreProcess

    folder = tmp_path_factory.mktemp("hostile")
    store = StoreProcess(folder)
    site = Site(folder, store, console__max_body_bytes=MIB, console__max_page=50)
    yield site
    site.console.close()
    store.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/messages", "bad-parameter"),
        ("/messages?filter=", "bad-parameter"),
        ("/messages?filter=a/%23/b", "bad-request"),
        ("/messages?filter=%00", "bad-request"),
        ("/messages?filter=a&limit=0", "bad-parameter"),
        ("/messages?filter=a&limit=51", "bad-parameter"),
        ("/messages?filter=a&limit=x", "bad-parameter"),
        ("/messages?filter=a&order=up", "bad-parameter"),
        ("/messages?filter=a&start=yesterday", "bad-parameter"),
        ("/messages?filter=a&start=99999999999999999999", "bad-parameter"),
        ("/messages?filter=a&cursor=", "bad-cursor"),
        ("/messages?filter=a&cursor=AAAAAAAA", "bad-cursor"),
        ("/messages?filter=a&cursor=%C3%A4", "bad-cursor"),
        ("/messages/nothing", "bad-message-id"),
        ("/messages/" + "0" * 32, "bad-message-id"),
        ("/messages/../../etc/passwd", "not-found"),
        ("/topics?prefix=a", "bad-parameter"),
        ("/topics?prefix=%23/", "bad-parameter"),
        ("/topics/a%00b", "bad-parameter"),
        ("/topics?after=zzz", "bad-cursor"),
        ("/series?topic=a&step=0s", "bad-parameter"),
        ("/series?topic=a/%2B", "bad-parameter"),
        ("/retained?filter=a&after=zz", "bad-cursor"),
        ("/clients?after=-1", "bad-cursor"),
        ("/nothing", "not-found"),
        ("/../v1/health", "not-found"),
    ],
)
def test_wrong_parameters(site: Site, path: str, kind: str) -> None:
    answer = site.client.ask("GET", path)
    assert 400 <= answer.status < 500, answer
    assert answer.kind == kind


def test_each_operation_refuses_query_parameters_that_it_does_not_have(site: Site) -> None:
    """An older server, or a slip of the pen, would answer with something else than what was asked for."""
    document = site.client.ask("GET", "/api/openapi.json").json
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            asked = re.sub(r"{[^}]+}", "1", path) + "?limti=5&" + "&".join(f"{name}=1" for name in known)
            answer = site.client.ask(method.upper(), asked, {"topic": "unsent"} if "requestBody" in operation else None)
            assert (answer.status, answer.kind) == (422, "unknown-parameter"), (method, path)
            assert "'limti'" in answer.json["detail"]
            assert all(name in answer.json["detail"] for name in known)
    many = "&".join(f"a{number}{'x' * 200}=1" for number in range(60))
    assert len(site.client.get(f"/messages?filter=a&{many}").body) < 2_000
    assert site.client.get("/messages", filter="unsent").json["messages"] == []


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/messages", "GET, POST"),
        ("/session", "DELETE, GET, POST"),
        ("/groups/a", "DELETE, GET"),
        ("/groups/a/dead-letters/drop", "POST"),
        ("/clients/a/b", "DELETE, GET"),
        ("/clients/a/disconnect", "POST"),
    ],
)
def test_wrong_method_is_answered_with_the_allowed_methods(site: Site, path: str, allowed: str) -> None:
    answer = site.client.ask("PATCH", path)
    assert (answer.status, answer.kind, answer.headers["allow"]) == (405, "method-not-allowed", allowed)
    if "GET" not in allowed and not path.startswith("/clients"):
        assert site.client.get(path).status == 405


@pytest.mark.parametrize(
    ("accept", "parameters"),
    [
        ("text/event-stream", ("stop=now", "limit=1", "order=asc", "order=desc", "key=k", "cursor=AAAA")),
        ("application/x-ndjson", ("order=desc", "key=k", "cursor=AAAA")),
    ],
)
def test_a_stream_refuses_what_only_pages_have(site: Site, accept: str, parameters: tuple[str, ...]) -> None:
    for each in parameters:
        answer = site.client.ask("GET", f"/messages?filter=a&{each}", Accept=accept)
        assert (answer.status, answer.kind) == (400, "bad-parameter"), each
        assert answer.json["detail"].startswith(each.partition("=")[0])


def test_limit_means_the_same_in_each_operation_that_has_pages(site: Site) -> None:
    document = site.client.ask("GET", "/api/openapi.json").json
    paths = {}
    for path, methods in document["paths"].items():
        for each in methods.get("get", {}).get("parameters", ()):
            if each["name"] == "limit":
                paths[path.removeprefix("/api/v1").replace("{group}", "g")] = each
    assert set(paths) == {"/messages", "/topics", "/delayed", "/retained", "/bans", "/groups/g/dead-letters"}
    for path, limit in paths.items():
        if path == "/messages":  # NDJSON has no upper bound
            assert limit["schema"] == {"type": "integer", "minimum": 1}
            assert "50 at most" in limit["description"]
        else:
            assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 50, "default": 50}
        query = {"filter": "a"} if path in ("/messages", "/retained") else {}
        for wrong in (0, 51, "x", ""):
            assert site.client.get(path, **query, limit=wrong).kind == "bad-parameter"
        assert site.client.get(path, **query, limit=50).status in (200, 503)  # no operator's token
    assert site.client.get("/topics", last="true", limit=50).status == 200
    assert "integer from 1 to 50 (default: 50)" in site.client.ask("GET", "/api/docs").body.decode()


def test_a_cursor_belongs_to_one_query(site: Site) -> None:
    site.publish("cursor", "1", "2")
    cursor = site.client.get("/messages", filter="cursor", limit=1).json["next"]
    for query in ({"filter": "other"}, {"filter": "cursor", "order": "desc"}, {"filter": "cursor", "start": "-1h"}):
        assert site.client.get("/messages", **query, cursor=cursor).kind == "bad-cursor"
    for position in range(len(cursor)):
        broken = cursor[:position] + ("A" if cursor[position] != "A" else "B") + cursor[position + 1 :]
        answer = site.client.get("/messages", filter="cursor", limit=1, cursor=broken)
        assert answer.status == 400 or position == len(cursor) - 1  # whose last bits mean nothing


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"null",
        b'{"topic": 1}',
        b'{"topic": "a", "unknown": 1}',
        b'{"topic": "a", "qos": 3}',
        b'{"topic": "a/+"}',
        b'{"topic": "a", "payload_base64": "?"}',
        b'{"topic": "a", "delay": -1}',
        b'{"topic": "a", "delay": 1e300}',
        b'{"topic": "a", "headers": {"a": 1}}',
        b'{"topic": "a", "key": ""}',
        b'{"topic": "$SYS/a"}',
        b'{"topic": "a\\u0000b"}',
        b'{"topic": "\\ud800"}',
        b"[" * 100_000,
        b'{"topic": "a", "json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'[{"topic": "a"}, {"topic": ""}]',
    ],
    ids=lambda body: repr(body)[:40],
)
def test_wrong_bodies(site: Site, body: bytes) -> None:
    answer = site.client.ask("POST", "/messages", body, Content_Type="application/json")
    assert 400 <= answer.status < 500, answer
    assert answer.kind in ("bad-body", "bad-message")


def test_bodies_that_are_too_large_or_of_another_type(site: Site) -> None:
    large = json.dumps({"topic": "a", "payload": "x" * MIB}).encode()
    assert site.client.ask("POST", "/messages", large, Content_Type="application/json").kind == "body-too-large"
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = site.client.ask("POST", "/messages", b'{"topic": "a"}', Content_Type=kind)
        assert (answer.status, answer.kind) == (415, "unsupported-media-type")
    assert site.client.ask("PUT", "/messages", {}).kind == "method-not-allowed"


def test_a_chunked_body_has_the_same_bound(site: Site) -> None:
    host, _, port = site.client.address.partition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        head = f"POST /api/v1/messages HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(64):
                connection.sendall(chunk)
        except OSError:
            pass
        assert b" 413 " in connection.recv(4_096)


@pytest.mark.parametrize("sent", [b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000, b"\x16\x03\x01"])
def test_console_input_that_is_not_http(site: Site, sent: bytes) -> None:
    host, _, port = site.client.address.partition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(TIMEOUT_S)
        answer = connection.recv(100)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert site.client.get("/health").status == 200


def test_a_script_in_a_topic_and_a_payload_stays_json(site: Site) -> None:
    script = "<script>alert(1)</script>"
    site.publish(f"x/{script}", script)
    answer = site.client.get("/messages", filter=f"x/{script}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    problem = site.client.get("/messages", filter="x", start=script)
    assert problem.headers["content-type"] == "application/problem+json"


def test_a_reader_that_takes_nothing_costs_bounded_memory_and_delays_nobody(site: Site) -> None:
    for _ in range(20):
        site.publish("flood", *["x" * 20_000] * 40)
    process = psutil.Process(site.console.process.pid)
    before = process.memory_info().rss
    host, _, port = site.client.address.partition(":")
    stuck: list[socket.socket] = []
    for _ in range(5):
        connection = socket.create_connection((host, int(port)), TIMEOUT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        asked = "GET /api/v1/messages?filter=flood HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
        connection.sendall(asked.encode())
        stuck.append(connection)
    begun_s = time.monotonic()
    for _ in range(20):
        assert site.client.get("/messages", filter="flood", limit=1).status == 200
    assert time.monotonic() - begun_s < TIMEOUT_S / 3
    assert process.memory_info().rss - before < 120 * MIB
    for connection in stuck:
        connection.close()
    assert site.client.get("/health").status == 200


def test_streams_are_counted_and_bounded(tmp_path: Path, start_client_store: StartStore) -> None:
    site = Site(tmp_path, start_client_store(), console__max_streams=2)
    try:
        path = "/messages?filter=a"
        with site.client.events(path) as first, site.client.events(path):
            refused = site.client.ask("GET", path, Accept="text/event-stream")
            assert (refused.status, refused.kind) == (503, "too-many-streams")
            assert first is not None
        wait_until(lambda: _opens(site, path), TIMEOUT_S)
    finally:
        site.console.close()


def _opens(site: Site, path: str) -> bool:
    connection, answer = site.client.begin("GET", path, Accept="text/event-stream")
    connection.close()
    return answer.status == 200
