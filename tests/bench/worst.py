"""The worst that one client may send, packet by packet, and how long another one waits for the loop meanwhile.

    python -m tests.bench.worst [--limit-ms 5] [--rounds 3] [NAME ...]
    python -m tests.bench.worst --apart ...     to a gateway whose store is another process (tests/bench/worst_apart.py)
    python -m tests.bench.worst --wire ...      frames to a store (tests/bench/worst_frames.py)
    python -m tests.bench.worst --others ...    hooks, PROXY headers, groups (tests/bench/worst_others.py)
    python -m tests.bench.worst --crowds ...    to thousands of queues or readers (tests/bench/worst_crowds.py)

Each case goes over a real socket to a real server, whose loop has a clock (tests/bench/turn_clock.py): what is told is
the CPU time of its longest turn, so a busy machine makes little difference. A second client sends one PINGREQ after
another; `waited` is the time that passed until it had an answer, at most. Exit status 1: some turn was longer than the
limit.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench import worst_apart, worst_crowds, worst_others
from tests.bench.turn_clock import TurnClocks, clocked
from tests.bench.worst_frames import FRAMES
from tests.bench.worst_frames import results as of_frames
from tests.support.certificates import authority, vouched_for
from tests.support.mqtt_byte_client import PINGREQ, ByteClient, connected, packet, text
from tests.support.server_process import PenstockServer, ServeOptions

MIB = 1 << 20
PACKET_BYTES = MIB - 16  # the default of gateway.maximum_packet_size_bytes, less a header
LONGEST = 65_535
FILTERS, PROPERTIES = 512, 256  # the defaults of gateway.max_filters_per_packet and max_user_properties
SUBSCRIPTIONS = 10_000
WAIT_S = 20

Case = Callable[[], "tuple[bool, bytes]"]
"""Whether to send it behind a CONNECT, and the bytes."""


def varint(number: int) -> bytes:
    return packet(0, bytes(number))[1:-number] if number else b"\0"


def block(*properties: bytes) -> bytes:
    data = b"".join(properties)
    return varint(len(data)) + data


def pairs(count: int, name: bytes = b"k", value: bytes = b"v") -> bytes:
    return (b"\x26" + text(name) + text(value)) * count


def raw_connect(properties: bytes = b"", client_id: bytes = b"", flags: int = 2, rest: bytes = b"") -> bytes:
    return packet(0x10, b"\0\4MQTT\5", bytes((flags,)), b"\0\x3c", block(properties), text(client_id), rest)


def subscribe(filters: list[bytes], properties: bytes = b"", options: bytes = b"\0") -> bytes:
    return packet(0x82, b"\0\1", block(properties), *(text(each) + options for each in filters))


def unsubscribe(filters: list[bytes]) -> bytes:
    return packet(0xA2, b"\0\1\0", *map(text, filters))


def distinct(count: int, tail: bytes = b"/+") -> list[bytes]:
    return [b"f/%d" % i + tail for i in range(count)]


def in_pieces(filters: list[bytes], options: bytes = b"\0") -> bytes:
    return b"".join(subscribe(filters[at : at + FILTERS], b"", options) for at in range(0, len(filters), FILTERS))


DEEP = [b"/".join((b"%d" % i, *[b"+"] * 199)) for i in range(FILTERS)]
OVERLAPPING = [b"/".join(each) for each in itertools.product((b"a", b"+"), repeat=11)]
MATCHED_TOPIC = text(b"/".join([b"a"] * 11))
MATCHED = packet(0x30, MATCHED_TOPIC, b"\0")

CASES: dict[str, Case] = {
    "CONNECT: properties, too many": lambda: (False, raw_connect(pairs(40_000))),
    "CONNECT: properties, as many as allowed": lambda: (False, raw_connect(pairs(PROPERTIES, b"k" * 100, b"v" * 100))),
    "CONNECT: one long property": lambda: (False, raw_connect(pairs(1, b"k" * LONGEST, b"\xc3\xa9" * 32_767))),
    "CONNECT: client id": lambda: (False, raw_connect(b"", b"c" * LONGEST)),
    "CONNECT: user name, password": lambda: (False, raw_connect(b"", b"c", 0xC2, text(b"u" * LONGEST) * 2)),
    "CONNECT: will": lambda: (
        False,
        raw_connect(b"", b"c", 6, block(pairs(PROPERTIES)) + text(b"/".join([b"w"] * 200)) + text(b"x" * LONGEST)),
    ),
    "CONNECT: authentication data": lambda: (
        False,
        raw_connect(b"\x15" + text(b"SCRAM-SHA-256") + b"\x16" + text(b"n" * LONGEST)),
    ),
    "AUTH: data": lambda: (
        True,
        packet(0xF0, b"\x19", block(b"\x15" + text(b"m" * LONGEST), b"\x16" + text(b"x" * LONGEST), pairs(PROPERTIES))),
    ),
    "PUBLISH: properties, too many": lambda: (True, packet(0x30, text(b"a"), block(pairs(PACKET_BYTES // 7)))),
    "PUBLISH: properties, empty, too many": lambda: (
        True,
        packet(0x30, text(b"a"), block(pairs(PACKET_BYTES // 5, b"", b""))),
    ),
    "PUBLISH: properties that are not ASCII": lambda: (
        True,
        packet(0x30, text(b"a"), block(pairs(PROPERTIES, b"\xc3\xa9" * 100, b"\xc3\xa9" * 1_000))) * 8,
    ),
    "PUBLISH: topic, 200 levels": lambda: (True, packet(0x30, text(b"/".join([b"\xc3\xa9"] * 200)), b"\0") * 2_000),
    "PUBLISH: topic, 64 KB": lambda: (True, packet(0x30, text(b"\xc3\xa9" * 32_767), b"\0") * 16),
    "PUBLISH: topics, each another": lambda: (
        True,
        b"".join(packet(0x30, text(b"t/%d" % i), b"\0") for i in range(20_000)),
    ),
    "PUBLISH: retained, one topic": lambda: (True, packet(0x31, text(b"retained"), b"\0x") * 20_000),
    "PUBLISH: retained, each another": lambda: (
        True,
        b"".join(packet(0x31, text(b"r/%d" % i), b"\0x") for i in range(8_000)),
    ),
    "PUBLISH: delayed": lambda: (
        True,
        b"".join(packet(0x30, text(b"$delayed/1/d/%d" % i), b"\0x") for i in range(8_000)),
    ),
    "PUBLISH: delayed, bad forms": lambda: (True, packet(0x30, text(b"$delayed/" + b"9" * 60_000), b"\0") * 16),
    "PUBLISH: $SYS": lambda: (True, packet(0x30, text(b"$SYS/" + b"x/" * 30_000), b"\0") * 16),
    "PUBLISH: aliases": lambda: (
        True,
        b"".join(packet(0x30, text(b"\xc3\xa9" * 5_000), block(b"\x23\0" + bytes((i,)))) for i in range(1, 17)),
    ),
    "PUBLISH: correlation data": lambda: (
        True,
        packet(0x32, text(b"a"), b"\0\1", block(b"\x09" + text(b"x" * LONGEST))),
    ),
    "PUBLISH: payload": lambda: (True, packet(0x30, text(b"a"), b"\0", b"x" * (PACKET_BYTES - 8)) * 8),
    "PUBLISH: tiny": lambda: (True, packet(0x30, text(b"a"), b"\0") * 100_000),
    "PUBLISH: QoS 2, tiny": lambda: (
        True,
        b"".join(packet(0x34, text(b"a"), i.to_bytes(2, "big"), b"\0") for i in range(1, 1_024)),
    ),
    "PUBACK: properties": lambda: (True, packet(0x40, b"\0\1\0", block(pairs(PROPERTIES))) * 100),
    "PUBREC: unknown, tiny": lambda: (True, b"\x50\2\0\1" * 60_000),
    "PUBREL: unknown, tiny": lambda: (True, b"\x62\2\0\1" * 60_000),
    "PUBCOMP: unknown, tiny": lambda: (True, b"\x70\2\0\1" * 60_000),
    "PUBACK: unknown, tiny": lambda: (True, b"\x40\2\0\1" * 60_000),
    "SUBSCRIBE: filters, too many": lambda: (True, subscribe(distinct(50_000))),
    "SUBSCRIBE: filters, as many as allowed": lambda: (True, subscribe(distinct(FILTERS))),
    "SUBSCRIBE: filters, as many as a session may have": lambda: (True, in_pieces(distinct(SUBSCRIPTIONS))),
    "SUBSCRIBE: filters, 200 levels of wildcards": lambda: (True, subscribe(DEEP)),
    "SUBSCRIBE: one filter, 64 KB": lambda: (True, subscribe([b"\xc3\xa9" * 32_767])),
    "SUBSCRIBE: one filter, again and again": lambda: (True, subscribe([b"#"]) * 3_000),
    "SUBSCRIBE: properties": lambda: (True, subscribe([b"a"], pairs(PROPERTIES)) * 100),
    "SUBSCRIBE: groups": lambda: (True, subscribe([b"$share/g%d/a" % i for i in range(FILTERS)])),
    "SUBSCRIBE: overlapping, and a message": lambda: (
        True,
        in_pieces(OVERLAPPING) + MATCHED,
    ),
    "SUBSCRIBE: overlapping, and 2,000 messages": lambda: (True, in_pieces(OVERLAPPING) + MATCHED * 2_000),
    "SUBSCRIBE: overlapping, QoS 2, and 100 messages": lambda: (
        True,
        in_pieces(OVERLAPPING, b"\2")
        + b"".join(packet(0x34, MATCHED_TOPIC, i.to_bytes(2, "big"), b"\0") for i in range(1, 101)),
    ),
    "SUBSCRIBE: 16 filters, 8,000 retained messages": lambda: (
        True,
        b"".join(packet(0x31, text(b"w/%d" % i), b"\0x") for i in range(8_000))
        + subscribe([b"+/+" + b"/#" * (i % 2) for i in range(16)]),
    ),
    "UNSUBSCRIBE: filters, too many": lambda: (True, unsubscribe(distinct(50_000))),
    "UNSUBSCRIBE: filters": lambda: (True, subscribe(distinct(FILTERS)) + unsubscribe(distinct(FILTERS))),
    "SUBACK from a client": lambda: (True, packet(0x90, b"\0\1\0", b"\0" * (PACKET_BYTES - 3))),
    "DISCONNECT: properties": lambda: (True, packet(0xE0, b"\0", block(pairs(PROPERTIES)))),
    "DISCONNECT: reason string": lambda: (True, packet(0xE0, b"\0", block(b"\x1f" + text(b"\xc3\xa9" * 32_767)))),
    "PINGREQ: 100,000": lambda: (True, PINGREQ * 100_000),
}


def frames(payloads: Iterable[bytes], opcode: int = 0x82) -> bytes:
    """WebSocket frames of one message, masked with zeros; or as many pings."""
    first, following = bytes((opcode & 0x7F,)), b"\0"
    if opcode & 8:
        first = following = bytes((opcode,))
    found = [following + bytes((0x80 | len(each),)) + bytes(4) + each for each in payloads]
    return first + b"".join(found)[1:]


def each_byte(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


FLOOD = (PINGREQ * (PACKET_BYTES // 14))[: PACKET_BYTES // 7]
LAYERED: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "WebSocket: frames of one byte": ("ws", lambda: [frames(each_byte(FLOOD))]),
    "WebSocket: empty fragments": ("ws", lambda: [frames([b""] * (PACKET_BYTES // 6))]),
    "WebSocket: pings": ("ws", lambda: [frames([b""] * (PACKET_BYTES // 6), 0x89)]),
    "WebSocket: one large frame": (
        "ws",
        lambda: [b"\x82\xff" + PACKET_BYTES.to_bytes(8, "big") + bytes(4) + PINGREQ * (PACKET_BYTES // 2)],
    ),
    "WebSocket: upgrade, short headers": ("ws", lambda: [PINGREQ]),
    "WebSocket: upgrade, one header that is too long": ("ws", lambda: [PINGREQ]),
    "TLS: records of one byte": ("mqtts", lambda: list(each_byte(PINGREQ * 15_000))),
    "TLS: large records": ("mqtts", lambda: [PINGREQ * (PACKET_BYTES // 2)]),
}
"""Through the layers below: the scheme, and what is sent behind the CONNECT, each with a write of its own."""
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
UPGRADES = {
    "WebSocket: upgrade, short headers": UPGRADE[:-2] + b"".join(b"%x:\r\n" % i for i in range(2_300)) + b"\r\n",
    "WebSocket: upgrade, one header that is too long": UPGRADE[:-2] + b"x: " + b"y" * (MIB - 4) + b"\r\n\r\n",
}


class Probe:
    """A client that pings all the time, and knows how long it had to wait for an answer at most."""

    def __init__(self, port: int) -> None:
        self._client = connected(port, b"probe")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_ms = 0.0

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self._client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            assert self._client.until_pong() == []
            self.longest_ms = max(self.longest_ms, (time.monotonic() - began_s) * 1000)


@dataclass(frozen=True)
class Result:
    """What came of one case; milliseconds."""

    name: str
    sent_bytes: int
    longest_turn: float
    waited: float
    """Time that passed until another client had its answer, at most."""


def run(server: PenstockServer, clocks: TurnClocks, name: str) -> Result:
    """Send one case, and wait until it is dealt with. Of a layered one: the server has an address for each scheme."""
    with Probe(server.port) as probe:
        clocks.settle()
        clocks.longest_ms()
        sent = _send_layered(server, name) if name in LAYERED else _send(server, CASES[name])
        clocks.settle()
    return Result(name, sent, max(clocks.longest_ms().values()), probe.longest_ms)


def _send(server: PenstockServer, case: Case) -> int:
    is_open, data = case()
    client = connected(server.port, b"worst") if is_open else ByteClient(server.port)
    with suppress(OSError, AssertionError):
        client.send(data)
        if is_open:
            client.until_pong()
        else:
            client.take()
    client.close()
    return len(data)


def _send_layered(server: PenstockServer, name: str) -> int:
    scheme, make = LAYERED[name]
    port = next(int(url.rsplit(":", 1)[1].split("/")[0]) for url in server.urls if url.startswith(f"{scheme}://"))
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.settimeout(WAIT_S)
        pieces = [raw_connect(client_id=b"worst"), *make()]
        if scheme == "ws":
            pieces = [UPGRADES.get(name, UPGRADE) + b"\x82" + frames([pieces[0]])[1:], *pieces[1:]]
        data = _as_tls(plain, pieces) if scheme == "mqtts" else b"".join(pieces)
        with suppress(OSError):
            reader = threading.Thread(target=_read_all, args=(plain,))
            reader.start()
            plain.sendall(data)
            plain.shutdown(socket.SHUT_WR)
            reader.join(WAIT_S)
    return len(data)


def _read_all(plain: socket.socket) -> None:
    with suppress(OSError):
        while plain.recv(65_536):
            pass


def _as_tls(plain: socket.socket, pieces: list[bytes]) -> bytes:
    """A record for each piece, behind a handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read())
            incoming.write(plain.recv(65_536))
    for piece in pieces:
        tls.write(piece)
    return outgoing.read()


def results(names: list[str], data: Path, rounds: int = 1) -> Iterator[Result]:
    """Of each case, the median of some rounds, on a server of its own for all of them."""
    made = vouched_for(data, "server", "DNS:localhost", authority(data, "authority"))
    settings = {
        "gateway.listen": "mqtt://127.0.0.1:0,ws://127.0.0.1:0,mqtts://127.0.0.1:0",
        "gateway.tls_certificate": made.certificate,
        "gateway.tls_key": made.key,
    }
    with clocked(data / "clocks") as clocks:
        server = PenstockServer(data / "data", data / "log", ServeOptions({"flush": "async"}, settings)).one_gateway()
        try:
            for name in names:
                yield sorted((run(server, clocks, name) for _ in range(rounds)), key=_longest)[rounds // 2]
            assert "Traceback" not in server.log_text(), server.log_text()
        finally:
            server.kill()


def _longest(result: Result) -> float:
    return result.longest_turn


def main() -> int:
    parser = ArgumentParser("python -m tests.bench.worst")
    parser.add_argument("--limit-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is told")
    parser.add_argument("--apart", action="store_true", help="to a gateway whose store is another process")
    parser.add_argument("--wire", action="store_true", help="frames to a store, and its loop")
    parser.add_argument("--others", action="store_true", help="what needs a server of its own")
    parser.add_argument("--crowds", action="store_true", help="messages for thousands of queues or readers")
    parser.add_argument("names", nargs="*", help="cases that begin so; none: all")
    chosen = parser.parse_args()
    if chosen.crowds:
        return _crowds(chosen.names, chosen.rounds, chosen.limit_ms)
    known = FRAMES if chosen.wire else worst_others.OTHERS if chosen.others else (*CASES, *LAYERED)
    names = [name for name in known if not chosen.names or name.startswith(tuple(chosen.names))]
    worst = 0.0
    if chosen.apart:
        sent = {name: CASES[name]()[1] for name in names if name in CASES and CASES[name]()[0]}
        for name, turns in worst_apart.results(sent, chosen.rounds):
            worst = max(worst, *turns.values())
            print(f"{name:<64}" + "".join(f"{each:>10} {took:6.2f}" for each, took in turns.items()), flush=True)
        return int(worst > chosen.limit_ms)
    if chosen.wire or chosen.others:
        with tempfile.TemporaryDirectory() as folder:
            rounds = chosen.rounds
            found = worst_others.results(names, rounds) if chosen.others else of_frames(names, Path(folder), rounds)
            for name, longest_ms in found:
                worst = max(worst, longest_ms)
                print(f"{name:<52}{longest_ms:>20.2f}", flush=True)
        return int(worst > chosen.limit_ms)
    print(f"{'case':<52}{'bytes':>12}{'longest turn, ms':>20}{'waited, ms':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for each in results(names, Path(folder), chosen.rounds):
            worst = max(worst, each.longest_turn)
            told = f"{each.name:<52}{each.sent_bytes:>12,}{each.longest_turn:>20.2f}{each.waited:>14.1f}"
            print(told, flush=True)
    return int(worst > chosen.limit_ms)


def _crowds(names: list[str], rounds: int, limit_ms: float) -> int:
    print(f"{'case':<52}{'longest turn, ms':>20}{'waited, ms: usually':>24}{'at most':>10}")
    chosen = [name for name in worst_crowds.CROWDS if not names or name.startswith(tuple(names))]
    worst = 0.0
    for name, (turn, usual, most) in worst_crowds.results(chosen, rounds):
        worst = max(worst, turn)
        print(f"{name:<52}{turn:>20.2f}{usual:>24.2f}{most:>10.1f}", flush=True)
    return int(worst > limit_ms)


if __name__ == "__main__":
    sys.exit(main())
