"""No address and no user keeps others out of the console: connections, heads, bodies and streams have bounds."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import Site
from tests.interop.test_console_process import passwords
from tests.support.console_process import ConsoleProcess, basic
from tests.support.store_process import StoreProcess

MIB = 1 << 20
HERE, THERE = "127.0.0.1", "127.0.0.2"
MOST_USERS_STREAMS = 25
LOGIN = json.dumps({"user": "bob", "password": "s3c"}).encode()
HEAD = "Host: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module", autouse=True)
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Door:
    """A console, and sockets to it from any address of this machine."""

    def __init__(self, folder: Path, store: StoreProcess, **settings: object) -> None:
        by_path = {f"console.{name}": value for name, value in settings.items()}
        self.console = ConsoleProcess(folder, store.url, by_path)
        self.host, _, port = self.console.client().address.partition(":")
        self.port = int(port)
        self._sockets = ExitStack()

    def connect(self, address: str = HERE, sent: bytes = b"") -> socket.socket:
        made = socket.create_connection((self.host, self.port), TIMEOUT_S, (address, 0))
        self._sockets.enter_context(made)
        made.sendall(sent)
        return made

    def log_in(self, address: str = HERE) -> int:
        """The status of a login from there."""
        connection = HTTPConnection(self.host, self.port, timeout=TIMEOUT_S, source_address=(address, 0))
        try:
            connection.request("POST", "/api/v1/session", LOGIN, {"Content-Type": "application/json"})
            return connection.getresponse().status
        finally:
            connection.close()

    def close(self) -> None:
        self._sockets.close()
        self.console.close()


OpenDoor = Callable[..., Door]


@pytest.fixture
def open_door(tmp_path: Path, start_client_store: StartStore) -> Iterator[OpenDoor]:
    doors: list[Door] = []

    def start(**settings: object) -> Door:
        store = start_client_store(auth__password_file=passwords(tmp_path, bob="s3c", alice="s3c"))
        doors.append(Door(tmp_path, store, **settings))
        return doors[-1]

    yield start
    for each in doors:
        each.close()


def received(connection: socket.socket) -> bytes:
    """All that comes until the end."""
    found = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            found += data
    return found


# --- connections


@pytest.mark.parametrize("sent", [b"", b"GET /api/v1/session HTTP/1.1\r\nHost:"], ids=["silent", "unfinished"])
def test_idle_connections_of_one_address_keep_nobody_out(open_door: OpenDoor, sent: bytes) -> None:
    door = open_door(head_s=3_600)
    for _ in range(1_005):
        door.connect(THERE, sent)
    assert door.log_in() == 201
    assert door.log_in(THERE) == 201


def test_idle_connections_of_many_addresses_keep_nobody_out(open_door: OpenDoor) -> None:
    door = open_door(head_s=3_600, max_connections=40, max_connections_per_address=10)
    for number in range(60):
        door.connect(f"127.0.0.{2 + number // 10}")
    for _ in range(5):
        assert door.log_in() == 201


def test_connections_with_requests_do_not_give_way(open_door: OpenDoor) -> None:
    door = open_door(max_connections_per_address=4)
    head = f"POST /api/v1/messages HTTP/1.1\r\n{HEAD}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode()
    busy = [door.connect(THERE, head) for _ in range(4)]
    for each in busy:
        assert each.recv(100).startswith(b"HTTP/1.1 100")
    assert b" 503 " in received(door.connect(THERE))
    assert door.log_in() == 201
    for each in busy:
        each.sendall(b"x" * 100)
        assert b"HTTP/1.1 401" in each.recv(4_096)


def test_a_trusted_proxy_has_no_bound_of_its_own(open_door: OpenDoor) -> None:
    door = open_door(max_connections_per_address=2, max_connections=8, proxies="127.0.0.2/32")
    head = f"POST /api/v1/messages HTTP/1.1\r\n{HEAD}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode()
    busy = [door.connect(THERE, head) for _ in range(6)]
    assert all(each.recv(100).startswith(b"HTTP/1.1 100") for each in busy)
    assert door.log_in() == 201


# --- heads


@pytest.mark.parametrize(
    ("sent", "then"),
    [
        (b"", b""),
        (b"GET /api/v1/health HTTP/1.1\r\nHost: local", b""),
        (b"\r\n", b""),
        (b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"),
        (b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\n"),
    ],
    ids=["nothing", "half", "line end", "line end behind a request", "half behind a request"],
)
def test_a_head_that_does_not_come_in_time(open_door: OpenDoor, sent: bytes, then: bytes) -> None:
    door = open_door(head_s=1)
    connection = door.connect(sent=sent)
    if then:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(then)
    answer = received(connection)
    assert b" 408 " in answer
    assert b"problem:slow-head" in answer


def test_a_head_that_comes_byte_by_byte(open_door: OpenDoor) -> None:
    door = open_door(head_s=1)
    connection = door.connect(sent=b"GET / HTTP/1.1\r\n")
    connection.settimeout(0.05)
    answer = b""
    while not answer:
        try:
            connection.sendall(b"a")
            answer = connection.recv(4_096)
        except TimeoutError:
            continue
    assert b" 408 " in answer


@pytest.mark.parametrize("part", [b"x-a: b\r\n", b"a" * 64], ids=["many headers", "a long one"])
def test_a_head_without_an_end(open_door: OpenDoor, part: bytes) -> None:
    door = open_door()
    connection = door.connect(sent=b"GET / HTTP/1.1\r\nx-long: ")
    with suppress(OSError):
        for _ in range(64):
            connection.sendall(part * (65_536 // len(part)))
    assert b" 431 " in received(connection)
    assert door.log_in() == 201


# --- bodies


def test_a_body_that_does_not_come_in_time(open_door: OpenDoor) -> None:
    door = open_door(body_s=1)
    head = f"POST /api/v1/messages HTTP/1.1\r\n{HEAD}Content-Length: 100\r\n\r\n"
    answer = received(door.connect(sent=head.encode() + b"{"))  # and the connection ends
    assert b" 408 " in answer
    assert b"problem:slow-body" in answer


def test_unfinished_bodies_of_one_address_keep_nobody_out(open_door: OpenDoor) -> None:
    door = open_door()
    size = 8 * MIB
    head = f"POST /api/v1/messages HTTP/1.1\r\n{HEAD}Content-Length: {size}\r\n\r\n".encode()
    for _ in range(9):
        connection = door.connect(THERE, head)
        with suppress(OSError):  # it is refused
            connection.sendall(b"x" * (size - 1))
    assert door.log_in() == 201
    assert door.log_in(THERE) == 201
    large = json.dumps({"topic": "large", "payload": "x" * (4 * MIB)}).encode()
    bob = door.console.client(Authorization=basic("bob", "s3c"), Content_Type="application/json")
    assert bob.post("/messages", large).status == 201


def test_unfinished_bodies_of_many_addresses_block_no_login(open_door: OpenDoor) -> None:
    door = open_door()
    size = 8 * MIB
    head = f"POST /api/v1/messages HTTP/1.1\r\n{HEAD}Content-Length: {size}\r\n\r\n".encode()
    for number in range(12):
        connection = door.connect(f"127.0.0.{2 + number}", head)
        with suppress(OSError):
            connection.sendall(b"x" * (size - 1))
    assert door.log_in() == 201


# --- streams


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_streams_of_one_user_keep_no_other_user_out(
    tmp_path: Path, start_client_store: StartStore, accept: str
) -> None:
    site = Site(tmp_path, start_client_store(auth__password_file=passwords(tmp_path, bob="s3c", alice="s3c")))
    bob, alice = site.user("bob"), site.user("alice")
    path = "/messages?filter=a"
    with ExitStack() as opened:
        opened.callback(site.console.close)
        for _ in range(32):
            assert bob.post("/messages", {"topic": "a", "payload": "x" * MIB}).status == 201
        statuses = []
        for _ in range(100):
            connection, stream = bob.begin("GET", path, Accept=accept)
            opened.callback(connection.close)
            statuses.append(stream.status)
        assert statuses == [200] * MOST_USERS_STREAMS + [429] * (100 - MOST_USERS_STREAMS)
        connection, stream = alice.begin("GET", path, Accept=accept)
        opened.callback(connection.close)
        assert stream.status == 200
        refused = HTTPConnection(site.client.address, timeout=TIMEOUT_S)
        opened.callback(refused.close)
        refused.request("GET", "/topic/live?name=a", headers={"Authorization": basic("bob", "s3c")})
        assert refused.getresponse().status == 429
