"""Listeners: several at once, behind a proxy, with limits, and with clients that never get to the point."""

import socket
import struct
import time
from pathlib import Path

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect
from gateway.transport.proxy_protocol import SIGNATURE
from tests.conftest import IN_ALL_TOPOLOGIES, ONE_PROCESS, SHARED_PORT, ServerFactory
from tests.crash import strace
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.support.certificates import authority, vouched_for
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

CONNECT = encode(Connect("device", 4), 4)
CLIENT = ("192.0.2.7", 40_000)
PROXIED = SIGNATURE + struct.pack("!BBH4s4sHH", 0x21, 0x11, 12, socket.inet_aton(CLIENT[0]), bytes(4), CLIENT[1], 1883)
LOCAL = SIGNATURE + struct.pack("!BBH", 0x20, 0, 0)


def address(server: PenstockServer, scheme: str) -> tuple[str, int]:
    """Of the first listener with this scheme."""
    url = next(url for url in server.urls if url.startswith(scheme + "://"))
    host, _, port = url.removeprefix(scheme + "://").partition("/")[0].partition("?")[0].rpartition(":")
    return host.strip("[]"), int(port)


def connected(where: tuple[str, int] | str, *parts: bytes) -> socket.socket:
    """Sends the parts apart from each other."""
    client = socket.socket(socket.AF_UNIX) if isinstance(where, str) else socket.create_connection(where)
    client.settimeout(TIMEOUT_S)
    if isinstance(where, str):
        client.connect(where)
    else:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for part in parts:
        client.sendall(part)
    return client


def is_let_in(client: socket.socket) -> bool:
    """Whether there is a CONNACK; otherwise the connection is closed."""
    try:
        return client.recv(4) == b"\x20\2\0\0"
    except ConnectionResetError:
        return False


def wait_for_log(server: PenstockServer, text: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while text not in server.log_text():
        assert time.monotonic() < deadline_s, f"{text!r} is not in {server.log_text()}"
        time.sleep(0.02)


@SHARED_PORT  # and the path, which the processes inherit
def test_several_at_once(penstock_server: ServerFactory, tmp_path: Path) -> None:
    path = str(tmp_path / "mqtt.sock")
    urls = f"mqtt://127.0.0.1:0,mqtt://[::1]:0,mqtt://localhost:0,unix://{path}"
    server = penstock_server(settings={"gateway.listen": urls})
    subscriber = PahoClient(server.port).connect().subscribe("t", 1)
    places: list[tuple[str, int] | str] = [("::1", int(server.urls[1].rpartition(":")[2])), path]
    places.append(("localhost", int(server.urls[2].rpartition(":")[2])))
    for place in places:
        with connected(place, CONNECT) as client:
            assert is_let_in(client)
            client.sendall(b"\x30\x04\0\1tx")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
    assert subscriber.messages(3) == [("t", b"x")] * 3
    assert server.urls[3] == f"unix://{path}"
    assert Path(path).stat().st_mode & 0o777 == 0o660
    server.terminate()
    assert not Path(path).exists()


@ONE_PROCESS  # two gateways have paths of their own in these tests
def test_a_unix_socket_that_was_left_behind(penstock_server: ServerFactory, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    server = penstock_server(settings={"gateway.listen": f"unix://{path}"})
    server.kill()
    assert path.exists()
    server.restart()
    with connected(str(path), CONNECT) as client:
        assert is_let_in(client)
    with pytest.raises(RuntimeError, match=r"mqtt.sock: cannot listen there .* another path"):
        penstock_server(settings={"gateway.listen": f"unix://{path}"})


@SHARED_PORT  # and the path, which the processes inherit
def test_proxy_protocol_names_clients_of_every_listener(
    penstock_server: ServerFactory, tmp_path: Path, topology: str
) -> None:
    path = tmp_path / "mqtt.sock"
    urls = f"mqtt://127.0.0.1:0?proxy_protocol=2,unix://{path}" + (
        "" if topology == "shared port" else "?proxy_protocol=2"
    )
    server = penstock_server(settings={"gateway.listen": urls})
    place = address(server, "mqtt")
    for parts in ((PROXIED + CONNECT,), (PROXIED, CONNECT), tuple(bytes((byte,)) for byte in PROXIED + CONNECT)):
        with connected(place, *parts) as client:
            assert is_let_in(client)
            wait_for_log(server, "client device connected from 192.0.2.7:40000")
    with connected(place, LOCAL + CONNECT) as client:
        assert is_let_in(client)
        wait_for_log(server, f"client device connected from 127.0.0.1:{client.getsockname()[1]}")
    if topology == "one process":
        with connected(str(path), PROXIED + CONNECT) as client:
            assert is_let_in(client)


@ONE_PROCESS
def test_headers_are_taken_from_proxies_only(penstock_server: ServerFactory) -> None:
    settings = {"gateway.listen": "mqtt://127.0.0.1:0?proxy_protocol=2", "gateway.proxies": "10.0.0.0/8,192.0.2.1"}
    server = penstock_server(settings=settings)
    with connected(address(server, "mqtt")) as client:
        assert client.recv(4) == b""
    wait_for_log(server, "no PROXY protocol header is taken from it: it is not among gateway.proxies (NOT_AUTHORIZED)")
    with pytest.raises(RuntimeError, match=r"gateway.proxies: .*name addresses or networks"):
        penstock_server(settings=settings | {"gateway.proxies": "10.0.0.0/99"})


def test_bad_headers_end_their_connections_only(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.listen": "mqtt://127.0.0.1:0?proxy_protocol=2"})
    place = address(server, "mqtt")
    with connected(place, PROXIED + CONNECT) as good:
        assert is_let_in(good)
        for data in (CONNECT, b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n", SIGNATURE + b"\x21\x11\xff\xff", b"\0" * 5000):
            with connected(place, data) as client:
                assert not is_let_in(client)
        with connected(place, PROXIED + b"\xc0\0") as client:
            assert not is_let_in(client)
        good.sendall(b"\xc0\0")
        assert good.recv(2) == b"\xd0\0"
    wait_for_log(server, "192.0.2.7:40000: the first packet is not CONNECT")
    assert "PROXY protocol header: does not begin as one (PROTOCOL_ERROR)" in server.log_text()


def test_clients_that_never_get_to_the_point(penstock_server: ServerFactory, tmp_path: Path) -> None:
    certificate = vouched_for(tmp_path, "server", "DNS:localhost", authority(tmp_path, "authority"))
    settings = {
        "gateway.listen": "mqtt://127.0.0.1:0,mqtts://127.0.0.1:0,ws://127.0.0.1:0,wss://127.0.0.1:0,"
        "mqtt://127.0.0.1:0?proxy_protocol=2",
        "gateway.tls_certificate": certificate.certificate,
        "gateway.tls_key": certificate.key,
        "gateway.connect_timeout_s": 1,
    }
    server = penstock_server(settings=settings)
    live = PahoClient(server.port).connect().subscribe("t", 1)
    ports = [int(url.rpartition(":")[2].partition("/")[0].partition("?")[0]) for url in server.urls]
    slow = [connected(("127.0.0.1", port)) for port in ports]
    starts = {
        0: b"\x10\x7f\0\4MQ",
        1: b"\x16\x03\1\2\0\1",
        2: b"GET /mqtt HTTP/1.1\r\nHost: ",
        3: b"\x16",
        4: PROXIED[:20],
    }
    slow += [connected(("127.0.0.1", ports[which]), start) for which, start in starts.items()]
    for client in slow:
        assert client.recv(1) == b""
        client.close()
    live.publish("t", [b"1"], 1)
    assert live.messages(1) == [("t", b"1")]


def test_the_system_looks_whether_a_silent_client_is_still_there(penstock_server: ServerFactory) -> None:
    server = penstock_server()
    with connected(("127.0.0.1", server.port), CONNECT) as client:
        assert is_let_in(client)
        ends = f":{client.getpeername()[1]:04X} 0100007F:{client.getsockname()[1]:04X} 01 "
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:  # a timer for an acknowledgement comes first
            timers = [line.split()[5] for line in Path("/proc/net/tcp").read_text().splitlines() if ends in line]
            assert len(timers) == 1
            if timers[0].startswith("02:"):  # proc(5): keep alive
                break
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def test_a_limit_for_each_listener(penstock_server: ServerFactory) -> None:
    settings = {"gateway.listen": "mqtt://127.0.0.1:0,mqtt://127.0.0.1:0", "gateway.listener_max_connections": 2}
    server = penstock_server(settings=settings)
    ports = [int(url.rpartition(":")[2]) for url in server.urls]
    for port in ports:
        clients = [connected(("127.0.0.1", port), encode(Connect(f"{port}-{i}", 4), 4)) for i in range(2)]
        assert all(map(is_let_in, clients))
        with connected(("127.0.0.1", port), CONNECT) as third:
            assert not is_let_in(third)
        clients.pop().close()
        wait_for_log(server, f"client {port}-1 disconnected")
        with connected(("127.0.0.1", port), CONNECT) as third:
            assert is_let_in(third)
        clients.pop().close()
    assert "refused, listener_max_connections are connected" in server.log_text()


def test_only_so_many_in_a_second_are_let_in(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.listener_connects_per_s": 20}).one_gateway()
    began_s = time.monotonic()
    clients = [connected(("127.0.0.1", server.port), encode(Connect(f"c{i}", 4), 4)) for i in range(41)]
    assert all(map(is_let_in, clients))  # they waited, nobody was refused
    assert time.monotonic() - began_s > (40 - 2) / 20 - 0.1
    for client in clients:
        client.close()


@ONE_PROCESS  # its store's files are what is at stake
@pytest.mark.parametrize("how", ["closed", "cut", "refused"])
def test_no_descriptor_is_closed_twice(penstock_server: ServerFactory, tmp_path: Path, how: str) -> None:
    """The second time it may be somebody else's by then: a file of the store's."""
    server = penstock_server(listen="mqtt://127.0.0.1:0")
    with strace.recording(server.process.pid, ["close"], tmp_path / "trace"):
        for _ in range(5):
            client = connected(("127.0.0.1", server.port), b"\xff" * 6 if how == "refused" else CONNECT)
            assert is_let_in(client) == (how != "refused")
            if how == "cut":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
            client.close()
        with connected(("127.0.0.1", server.port), CONNECT) as last:
            assert is_let_in(last)
    calls = strace.read_trace(tmp_path / "trace")
    assert len(calls) >= 5
    assert [call for call in calls if call.result < 0] == []
