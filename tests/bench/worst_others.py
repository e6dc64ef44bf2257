"""Worst cases that need a server or clients of their own: cases of `python -m tests.bench.worst --others`."""

from __future__ import annotations

import json
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from gateway.transport.proxy_protocol import MOST_BYTES, SIGNATURE
from tests.bench.turn_clock import TurnClocks, clocked
from tests.support.http_answers import HttpAnswers
from tests.support.mqtt_byte_client import ByteClient, connected, packet, subscribe, text
from tests.support.server_process import PenstockServer, ServeOptions

MEMBERS = 512
HEADERS = 256
LOGINS = 64
ANSWER_BYTES = (64 << 10) - 64  # what a hook may answer: 64 KiB
RULES = 256  # the default of auth.max_client_rules

Doing = Callable[[PenstockServer, TurnClocks], None]


def members_leave(server: PenstockServer, clocks: TurnClocks) -> None:
    """All members of one group at once, as when a gateway's network goes."""
    members = [connected(server.port, b"m%d" % number) for number in range(MEMBERS)]
    for member in members:
        member.send(subscribe(b"$share/g/a"))
        member.take()
    settled(clocks)
    for member in members:
        member.close()


def headers(server: PenstockServer, clocks: TurnClocks) -> None:
    """PROXY headers as long as they may be, each with a CONNECT behind it, from many connections at once."""
    size = MOST_BYTES - 16
    header = struct.pack("!12sBBH", SIGNATURE, 0x21, 0x11, size) + b"\x0a\0\0\1\x7f\0\0\1\0\1\0\2"
    header += bytes((0xEE,)) + (size - 15).to_bytes(2, "big") + bytes(size - 15)
    connect = packet(0x10, b"\0\4MQTT\5\2\0\x3c\0", text(b""))
    settled(clocks)
    each_at_once(server, HEADERS, header + connect)


def headers_byte_by_byte(server: PenstockServer, clocks: TurnClocks) -> None:
    """One that is looked at whenever a byte of it comes."""
    settled(clocks)
    with socket.create_connection(("127.0.0.1", server.port)) as client, suppress(OSError):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in struct.pack("!12sBBH", SIGNATURE, 0x21, 0x11, MOST_BYTES - 16) + bytes(MOST_BYTES - 17):
            client.sendall(bytes((byte,)))


def logins(server: PenstockServer, clocks: TurnClocks) -> None:
    """Many at a time, which the hook answers at length."""
    settled(clocks)
    each_at_once(server, LOGINS, packet(0x10, b"\0\4MQTT\5\2\0\x3c\0", text(b"")))


def each_at_once(server: PenstockServer, count: int, data: bytes) -> None:
    """Send the same on so many connections, and wait for what comes back on each."""
    clients = [ByteClient(server.port) for _ in range(count)]

    def run(client: ByteClient) -> None:
        with suppress(OSError, AssertionError):
            client.send(data)
            client.take()

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()


def settled(clocks: TurnClocks) -> None:
    """What was done so far does not count."""
    clocks.settle()
    clocks.longest_ms()


def long_rules() -> bytes:
    """As many rules as a client may have, in an answer as long as one may be."""
    topics = [[f"{number}/{at}/" + "x" * 40 for at in range(4)] for number in range(RULES)]
    rules = [{"allow": ["publish"], "topics": each} for each in topics]
    data = json.dumps({"result": "allow", "permissions": rules}, separators=(",", ":")).encode()
    assert len(data) <= ANSWER_BYTES
    return data


def many_values() -> bytes:
    """Small lists, which take longest to read."""
    return b'{"result": "allow", "x": [' + b"[],".ljust(3) * ((ANSWER_BYTES - 40) // 3) + b"[]]}"


PROXY: dict[str, object] = {"gateway.listen": "mqtt://127.0.0.1:0?proxy_protocol=2"}
OTHERS: dict[str, tuple[dict[str, object], Doing, Callable[[], bytes] | None]] = {
    "Group: 512 members leave at once": ({}, members_leave, None),
    "PROXY: 256 headers of 4,096 bytes": (PROXY, headers, None),
    "PROXY: one header, byte by byte": (PROXY, headers_byte_by_byte, None),
    "Hook: 64 answers with 256 rules": ({}, logins, long_rules),
    "Hook: 64 answers of 64 KB of small lists": ({}, logins, many_values),
}
"""Settings, what is done, and what the hook answers, if there is one."""


def results(names: list[str], rounds: int) -> Iterator[tuple[str, float]]:
    """Of each case the longest turn (ms), the median of some rounds; each round has a server of its own."""
    for name in names:
        yield name, sorted(_longest(name) for _ in range(rounds))[rounds // 2]


def _longest(name: str) -> float:
    settings, do, answer = OTHERS[name]
    data = answer() if answer is not None else b""
    hook = HttpAnswers(lambda *_: (200, data)) if data else None
    if hook is not None:
        settings = {**settings, "auth.http_connect_url": f"{hook.url}/connect"}
    with tempfile.TemporaryDirectory() as made, clocked(Path(made) / "clocks") as clocks:
        folder = Path(made)
        server = PenstockServer(folder / "data", folder / "log", ServeOptions({"flush": "async"}, settings))
        server.one_gateway()
        try:
            do(server, clocks)
            clocks.settle()
            assert "Traceback" not in server.log_text(), server.log_text()
            assert "cannot be used" not in server.log_text(), server.log_text()
            return max(clocks.longest_ms().values())
        finally:
            server.kill()
            if hook is not None:
                hook.close()
