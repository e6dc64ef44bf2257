"""The worst that one client may send, packet by packet, and how long another one waits for the loop meanwhile.

    python -m tests.bench.worst [--limit-ms 5] [NAME ...]

Each case goes over a real socket to a real server. A second client sends one PINGREQ after another; what is told is the
most CPU time that the server used between a PINGREQ and its PINGRESP (on Linux), so a busy machine makes little
difference. Exit status 1: some case took longer than the limit.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.byte_client import PINGREQ, ByteClient, connected, packet, text
from tests.server_process import PenstockServer, ServeOptions

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


def in_pieces(filters: list[bytes]) -> bytes:
    return b"".join(subscribe(filters[at : at + FILTERS]) for at in range(0, len(filters), FILTERS))


DEEP = [b"/".join((b"%d" % i, *[b"+"] * 199)) for i in range(FILTERS)]
OVERLAPPING = [b"/".join(each) for each in itertools.product((b"a", b"+"), repeat=11)]

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
        in_pieces(OVERLAPPING) + packet(0x30, text(b"/".join([b"a"] * 11)), b"\0"),
    ),
    "UNSUBSCRIBE: filters, too many": lambda: (True, unsubscribe(distinct(50_000))),
    "UNSUBSCRIBE: filters": lambda: (True, subscribe(distinct(FILTERS)) + unsubscribe(distinct(FILTERS))),
    "SUBACK from a client": lambda: (True, packet(0x90, b"\0\1\0", b"\0" * (PACKET_BYTES - 3))),
    "DISCONNECT: properties": lambda: (True, packet(0xE0, b"\0", block(pairs(PROPERTIES)))),
    "DISCONNECT: reason string": lambda: (True, packet(0xE0, b"\0", block(b"\x1f" + text(b"\xc3\xa9" * 32_767)))),
    "PINGREQ: 100,000": lambda: (True, PINGREQ * 100_000),
}


class Probe:
    """A client that pings, and knows what CPU time the server's loop had meanwhile."""

    def __init__(self, port: int, pid: int) -> None:
        self._client = connected(port, b"probe")
        self._clock = ~pid << 3 | 2  # of a process, as clock_getcpuclockid(3) makes it
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_ms = 0.0
        self.pings = 0

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self._client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_ns = self._cpu_ns()
            assert self._client.until_pong() == []
            self.longest_ms = max(self.longest_ms, (self._cpu_ns() - began_ns) / 1e6)
            self.pings += 1

    def _cpu_ns(self) -> int:
        return time.clock_gettime_ns(self._clock)


def run(server: PenstockServer, case: Case) -> tuple[int, Probe]:
    """Send one case, and wait until it is dealt with."""
    is_open, data = case()
    with Probe(server.port, server.process.pid) as probe:
        client = connected(server.port, b"worst") if is_open else ByteClient(server.port)
        with suppress(OSError, AssertionError):
            client.send(data)
            if is_open:
                client.until_pong()
            else:
                client.take()
        client.close()
        after = probe.pings + 3  # what its leaving costs counts as well
        while probe.pings < after and probe._thread.is_alive():
            threading.Event().wait(0.005)
    return len(data), probe


def results(names: list[str], data: Path) -> Iterator[tuple[str, int, float]]:
    """Name, bytes and the longest turn (ms) of each case, on a server of its own for all of them."""
    server = PenstockServer(data / "data", data / "log", ServeOptions({"flush": "async"}))
    try:
        for name in names:
            sent, probe = run(server, CASES[name])
            yield name, sent, probe.longest_ms
        assert "Traceback" not in server.log_text(), server.log_text()
    finally:
        server.kill()


def main() -> int:
    parser = ArgumentParser("python -m tests.bench.worst")
    parser.add_argument("--limit-ms", type=float, default=5.0)
    parser.add_argument("names", nargs="*", help="cases that begin so; none: all")
    chosen = parser.parse_args()
    names = [name for name in CASES if not chosen.names or name.startswith(tuple(chosen.names))]
    worst = 0.0
    print(f"{'case':<52}{'bytes':>12}{'longest turn, ms':>20}")
    with tempfile.TemporaryDirectory() as folder:
        for name, sent, longest_ms in results(names, Path(folder)):
            worst = max(worst, longest_ms)
            print(f"{name:<52}{sent:>12,}{longest_ms:>20.2f}", flush=True)
    return int(worst > chosen.limit_ms)


if __name__ == "__main__":
    sys.exit(main())
