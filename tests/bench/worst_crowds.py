"""Messages to thousands of queues or readers, and how long another client waits: `tests.bench.worst --crowds`."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import select
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.bench.turn_clock import TurnClocks, clocked
from tests.support.mqtt_byte_client import PINGREQ, PINGRESP, ByteClient, connect, connected, packet, subscribe, text
from tests.support.server_process import PenstockServer, ServeOptions

CROWD = 5_000
LEVELS = 13  # 8,192 filters that match one topic
TOPIC = b"/".join([b"a"] * LEVELS)
FILTERS = [b"/".join(each) for each in itertools.islice(itertools.product((b"a", b"+"), repeat=LEVELS), 1, CROWD + 1)]
PAYLOAD = b"x" * 100
EXPIRES = b"\x02\0\0\0\x3c"
AT_ONCE = 64  # connections that are made before their answers are taken
FILTERS_AT_ONCE = 500
WAIT_S = 60
PAUSE_S = 0.000_5  # between two pings


class Crowd(NamedTuple):
    """Who subscribes, and what is published to them by one client."""

    clients: int
    filters: Callable[[int], list[bytes]]  # of the client with that number
    qos: int
    properties: bytes
    messages: int


def one(_: int) -> list[bytes]:
    return [TOPIC]


def own(number: int) -> list[bytes]:
    return [FILTERS[number]]


CROWDS = {
    "5,000 readers, QoS 0, 2,000 messages": Crowd(CROWD, one, 0, b"", 2_000),
    "5,000 readers, QoS 1, 100 messages": Crowd(CROWD, one, 1, b"", 100),
    "5,000 readers, QoS 0, 100 messages that expire": Crowd(CROWD, one, 0, EXPIRES, 100),
    "5,000 queues with a reader each, 1 message": Crowd(CROWD, own, 0, b"", 1),
    "5,000 queues with a reader each, 200 messages": Crowd(CROWD, own, 0, b"", 200),
    "5,000 queues of one session, 1 message": Crowd(1, lambda _: FILTERS, 0, b"", 1),
    "5,000 queues of one session, 200 messages": Crowd(1, lambda _: FILTERS, 0, b"", 200),
}


class Longest(NamedTuple):
    """Milliseconds, of one case."""

    turn: float  # CPU time of the longest turn of the loop
    usual_wait: float  # of another client for its PINGRESP: the median
    most_wait: float


def results(names: list[str], rounds: int) -> Iterator[tuple[str, Longest]]:
    """Of each case the medians of some rounds; each round has a server of its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for name in names:
        found = [_longest(CROWDS[name]) for _ in range(rounds)]
        yield name, Longest(*(statistics.median(each) for each in zip(*found, strict=True)))


def _longest(crowd: Crowd) -> Longest:
    with tempfile.TemporaryDirectory() as made, clocked(Path(made) / "clocks") as clocks:
        folder = Path(made)
        server = PenstockServer(folder / "data", folder / "log", ServeOptions({"flush": "async"}))
        server.one_gateway()
        try:
            with _gathered(server.port, crowd) as delivered:
                return _measured(server, clocks, crowd, delivered)
        finally:
            server.kill()


def _measured(server: PenstockServer, clocks: TurnClocks, crowd: Crowd, delivered: Callable[[], int]) -> Longest:
    publisher, waits = connected(server.port, b"publisher"), list[float]()
    qos = min(crowd.qos, 1)
    messages = [
        packet(
            0x30 | qos << 1,
            text(TOPIC),
            number.to_bytes(2, "big") if qos else b"",
            bytes((len(crowd.properties),)) + crowd.properties,
            PAYLOAD,
        )
        for number in range(1, crowd.messages + 1)
    ]
    clocks.settle()
    clocks.longest_ms()
    done = threading.Event()
    pinging = threading.Thread(target=_ping, args=(server.port, waits, done))
    pinging.start()
    before_bytes = delivered()
    publisher.send(*messages)
    until_s, wanted = time.monotonic() + WAIT_S, crowd.clients * sum(map(len, messages))
    while delivered() - before_bytes < wanted and time.monotonic() < until_s:
        time.sleep(0.01)
    done.set()
    pinging.join()
    clocks.settle()
    assert "Traceback" not in server.log_text(), server.log_text()
    publisher.close()
    return Longest(max(clocks.longest_ms().values()), statistics.median(waits), max(waits))


def _ping(port: int, waits: list[float], done: threading.Event) -> None:
    client = connected(port, b"another")
    while not done.is_set():
        began_s = time.monotonic()
        client.send(PINGREQ)
        assert client.take() == PINGRESP
        waits.append((time.monotonic() - began_s) * 1_000)
        time.sleep(PAUSE_S)
    client.close()


@contextmanager
def _gathered(port: int, crowd: Crowd) -> Iterator[Callable[[], int]]:
    """The crowd, in a process of its own; says how many bytes it was sent so far."""
    here, there = multiprocessing.Pipe()
    received = multiprocessing.Value("q", 0)
    process = multiprocessing.get_context("fork").Process(target=_read_all, args=(port, crowd, there, received))
    process.start()
    there.close()
    try:
        assert here.poll(WAIT_S), "the crowd did not come"
        here.recv()
        yield lambda: received.value
    finally:
        here.close()
        process.terminate()
        process.join()


def _read_all(port: int, crowd: Crowd, tell: Connection, received: object) -> None:
    """What the crowd does: it subscribes, says so, and reads."""
    clients, epoll = [], select.epoll()
    for first in range(0, crowd.clients, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, crowd.clients))
        came = [ByteClient(port) for _ in numbers]
        for number, client in zip(numbers, came, strict=True):
            client.send(connect(b"reader %d" % number, keep_alive_s=0))
            filters = crowd.filters(number)
            for at in range(0, len(filters), FILTERS_AT_ONCE):
                client.send(_subscribe(filters[at : at + FILTERS_AT_ONCE], crowd.qos))
        for number, client in zip(numbers, came, strict=True):
            for _ in range(1 + -(-len(crowd.filters(number)) // FILTERS_AT_ONCE)):
                client.take()
        clients += came
    for client in clients:
        epoll.register(client.fileno(), select.EPOLLIN)
    tell.send("ready")
    with suppress(OSError):
        while True:
            came_bytes = sum(len(os.read(fd, 1 << 20)) for fd, _ in epoll.poll())
            received.value += came_bytes  # type: ignore[attr-defined]


def _subscribe(filters: list[bytes], qos: int) -> bytes:
    if len(filters) == 1:
        return subscribe(filters[0], qos)
    return packet(0x82, b"\0\1\0", *(text(each) + bytes((qos,)) for each in filters))
