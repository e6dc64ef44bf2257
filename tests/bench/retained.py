"""The cost of finding a few retained messages among many: time by number of the others, and memory.

    python -m tests.bench.retained [1000 100000 1000000]

Topics are SITE/DEVICE/VALUE: ten sites, ten values of each device. Times are from SUBSCRIBE to the last retained
message, over a socket, the median of some.
"""

from __future__ import annotations

import re
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, PubAck, Publish, QoS, Subscribe, SubscriptionRequest, Unsubscribe
from tests.support.server_process import PenstockServer, ServeOptions

SITES = VALUES = 10
FILTERS = (("s3/7/v4", 1), ("s3/7/+", 10), ("s3/7/#", 10), ("+/7/v4", 10))
REPEATS = 50
COUNTS = [1_000, 100_000, 1_000_000]
WINDOW = 20_000  # messages in flight; the server takes more than that


class Client:
    """MQTT 3.1.1 on a blocking socket."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(encode(Connect("bench", 4, keep_alive_s=0), 4))
        self._packet()

    def _packet(self) -> int:
        """The first byte of the next packet; all are short."""
        head = self._file.read(2)
        self._file.read(head[1])
        return int(head[0])

    def retain(self, topics: list[str]) -> None:
        for at in range(0, len(topics), WINDOW):
            part = topics[at : at + WINDOW]
            packets = (Publish(t, b"21.5", QoS.AT_LEAST_ONCE, retain=True, packet_id=i) for i, t in enumerate(part, 1))
            self._socket.sendall(b"".join(encode(packet, 4) for packet in packets))
            for _ in part:
                assert self._packet() >> 4 == PubAck.packet_type

    def look_up(self, topic_filter: str, count: int) -> float:
        """Seconds."""
        start = time.perf_counter()
        self._socket.sendall(encode(Subscribe(1, (SubscriptionRequest(topic_filter),)), 4))
        missing = count + 1
        while missing:
            self._packet()
            missing -= 1
        passed_s = time.perf_counter() - start
        self._socket.sendall(encode(Unsubscribe(1, (topic_filter,)), 4))
        self._packet()
        return passed_s

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def measure(folder: Path, counts: list[int]) -> list[dict[str, object]]:
    """One server that gets more and more; a row for each number."""
    server = PenstockServer(folder / "data", folder / "log", ServeOptions({"flush": "async", "admin": "127.0.0.1:0"}))
    rows: list[dict[str, object]] = []
    try:
        client = Client(server.port)
        done, empty_bytes = 0, _own_bytes(server)
        for count in sorted(counts):
            client.retain(list(map(_topic, range(done, count))))
            done = count
            own_bytes = _own_bytes(server)
            row: dict[str, object] = {"retained": count, "memory_bytes_each": round((own_bytes - empty_bytes) / count)}
            for topic_filter, found in FILTERS:
                times_s = [client.look_up(topic_filter, found) for _ in range(REPEATS)]
                row[topic_filter] = f"{statistics.median(times_s) * 1000:.2f} ms"
            rows.append(row)
            print(row, flush=True)
        client.close()
    finally:
        server.kill()
    return rows


def look_up(folder: Path) -> dict[str, object]:
    """The same as one of the rows of `make bench`."""
    return {"rows": measure(Path(tempfile.mkdtemp(prefix="retained-", dir=folder)), COUNTS)}


def _topic(number: int) -> str:
    return f"s{number // VALUES % SITES}/{number // (SITES * VALUES)}/v{number % VALUES}"


def _own_bytes(server: PenstockServer) -> int:
    """Memory of its own, without mapped files, once it no longer changes and the index has all."""
    before = -1
    while _pending(server) or abs(before - (now := _anonymous_bytes(server.process.pid))) > 256 << 10:
        before = _anonymous_bytes(server.process.pid)
        time.sleep(2)
    return now


def _pending(server: PenstockServer) -> bool:
    """Whether the index is still to be given something."""
    admin = re.findall(r"^admin (\S+)", server.log_text(), re.MULTILINE)[-1]
    with urllib.request.urlopen(f"{admin}/metrics") as answer:
        found = re.search(r"^penstock_index_pending_entries (\S+)", answer.read().decode(), re.MULTILINE)
    assert found
    return float(found[1]) > 0


def _anonymous_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])  # type: ignore[index]


def main() -> None:
    counts = [int(each) for each in sys.argv[1:]] or COUNTS
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), counts)


if __name__ == "__main__":
    main()
