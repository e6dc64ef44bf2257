"""Tens of thousands of broken packets over thousands of connections, while a well-behaved client does its work."""

import random
import re
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.conftest import IN_ALL_TOPOLOGIES, ServerFactory
from tests.interop.programs import TIMEOUT_S, PahoClient, run
from tests.support.mqtt_mutations import must_be_closed, stream
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES

CONNECTIONS = {"one process": 18_000, "unix socket": 6_000, "two gateways": 6_000}
THREADS = 4
MEMORY_GROWTH_BYTES = 80 << 20  # a fifth of what clients that read nothing are owed
LINES_PER_SECOND = 10


@dataclass
class Witness:
    """Publishes to itself, one message after another, until it is told to stop."""

    client: PahoClient
    stop: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    slowest_s: float = 0

    def run(self) -> None:
        while not self.stop.is_set():
            started_s = time.monotonic()
            self.client.publish("witness/own", [b"%d" % self.sent], self.sent % 3)
            self.sent += 1
            received = self.client.raw_messages(self.sent)
            assert len(received) == self.sent
            assert received[-1].payload == b"%d" % (self.sent - 1)
            self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)


def misbehave(port: int, seed: int, count: int) -> int:
    """That many broken clients, one after another; returns how many the server had to get rid of."""
    rng = random.Random(seed)
    refused = 0
    for number in range(count):
        data = stream(rng)
        is_bad = must_be_closed(data)
        refused += is_bad
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            try:
                connection.sendall(data)
                if not is_bad:
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass
            except (ConnectionResetError, BrokenPipeError):
                pass  # closed while bytes were on their way
            except TimeoutError:
                raise AssertionError(f"seed {seed}, client {number} was not closed: {data!r}") from None
    return refused


def metric(server: PenstockServer, name: str) -> float:
    """The sum of a metric over its labels, and gateways."""
    text = ""
    for log in server.gateway_logs():
        found = re.search(r"^admin (http://\S+)$", log, re.MULTILINE)
        assert found
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=TIMEOUT_S) as answer:
            text += answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def memory_bytes(server: PenstockServer) -> int:
    return sum(process.memory_info().rss for process in server.gateways())


def storm(server: PenstockServer, connections: int, seeds: range) -> int:
    with ThreadPoolExecutor(THREADS) as pool:
        count = connections // 3 // len(seeds)
        return sum(pool.map(lambda seed: misbehave(server.port, seed, count), seeds))


def test_bad_input_harms_nobody(penstock_server: ServerFactory, topology: str) -> None:
    server = penstock_server(admin="127.0.0.1:0", flush="async")
    connections = CONNECTIONS[topology]
    before = server.gateways()
    client = PahoClient(server.port, client_id="witness").connect().subscribe("witness/#", 2)
    witness = Witness(client)
    started_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(witness.run)
        try:
            refused = storm(server, connections, range(THREADS))
            warm_bytes = memory_bytes(server)
            refused += storm(server, connections, range(THREADS, 2 * THREADS))
            refused += storm(server, connections, range(2 * THREADS, 3 * THREADS))
        finally:
            witness.stop.set()
        working.result(TIMEOUT_S)
    took_s = time.monotonic() - started_s
    assert server.gateways() == before
    assert witness.sent > 50
    assert witness.slowest_s < 5
    assert memory_bytes(server) - warm_bytes < MEMORY_GROWTH_BYTES
    wait_for_connections(server, 1)
    client.leave()
    assert refused > connections // 2
    assert metric(server, "penstock_bad_input_total") > refused / 2  # some of them only said DISCONNECT
    for log in server.gateway_logs():
        look_at_log(log, took_s)
    run("mosquitto_pub", "-p", str(server.port), "-t", "after", "-m", "1", "-q", "2", "-r")
    assert run("mosquitto_sub", "-p", str(server.port), "-t", "after", "-C", "1") == b"1\n"
    server.terminate()


def wait_for_connections(server: PenstockServer, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while metric(server, "penstock_connections") != count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def look_at_log(text: str, took_s: float) -> None:
    """A bounded number of lines of each kind, and no error that nobody expected."""
    assert "Traceback" not in text
    assert " ERROR " not in text
    lines = [line for line in text.splitlines() if " INFO " in line or " WARNING " in line]
    kinds = len({re.sub(r"[\d.:]+|client \S+|'.*'", "", line.split(" penstock", 1)[1])[:30] for line in lines})
    assert any(line.endswith(("(MALFORMED_PACKET)", "(PROTOCOL_ERROR)")) for line in lines)
    assert len(lines) < (LINES_PER_SECOND + 1) * (took_s + 2) * min(kinds, 8)
    assert max(map(len, lines)) < 1_000


def test_clients_that_say_nothing_are_closed(penstock_server: ServerFactory) -> None:
    server = penstock_server(settings={"gateway.connect_timeout_s": 1})
    silent = [socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) for _ in range(20)]
    for number, connection in enumerate(silent):
        connection.sendall(b"\x10\x20\0\4MQTT"[:number])
    for connection in silent:
        with connection:
            assert connection.recv(1) == b""


def test_a_client_that_reads_nothing_takes_no_memory(penstock_server: ServerFactory) -> None:
    """It asks for answers, and subscribes to much more than it reads."""
    server = penstock_server(flush="async", settings={"gateway.write_buffer_bytes": 65_536})
    before = server.gateways()
    publisher = PahoClient(server.port).connect()
    publisher.publish("t", [b"warm"], 1)
    before_bytes = memory_bytes(server)
    deaf = []
    for number in range(20):
        connection = socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.sendall(b"\x10\x0f\0\4MQTT\4\2\0\0\0\3d%02d" % number + b"\x82\6\0\1\0\1t\0")
        connection.settimeout(0.2)
        deaf.append(connection)
    publisher.publish("t", [bytes(100_000)] * 200, 1)
    for connection in deaf:
        stuff(connection, b"\xc0\0" * 500_000)
    assert memory_bytes(server) - before_bytes < MEMORY_GROWTH_BYTES
    assert server.gateways() == before
    publisher.publish("t", [b"still here"], 2)
    publisher.leave()
    for connection in deaf:
        connection.close()


def stuff(connection: socket.socket, data: bytes) -> None:
    """Send as much as the other side takes."""
    try:
        connection.sendall(data)
    except TimeoutError:
        return
