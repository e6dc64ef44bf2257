"""Redis Streams for comparison: XADD by publishers, XREADGROUP and XACK by one consumer, with plain sockets.

Redis has no MQTT, so it runs only workloads in which each message goes to one subscriber.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import time
from collections.abc import Sequence

from loadtest.devices._swarm import monotonic_ns
from loadtest.devices.address import BrokerAddress
from loadtest.devices.latency import Latency
from loadtest.devices.run import WorkloadRun
from loadtest.devices.steps import Progress
from loadtest.errors import BrokerRefuses, LoadTestError
from loadtest.resources import taken
from loadtest.workloads.workload import Workload

STREAM, GROUP = b"load", b"consumers"
READ_COUNT = 1_000
RECEIVE_BYTES = 1 << 20
TICK_S = 0.05
PATIENCE_S = 20.0
ENTRY = re.compile(rb"\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\np\r\n\$\d+\r\n(\d{20})")


def fits(workload: Workload) -> bool:
    """Whether a workload has only unlimited QoS 1 publishers and one subscriber."""
    return (
        not workload.steps
        and len(workload.publishers) == 1
        and sum(group.count for group in workload.subscribers) == 1
        and workload.deliveries() == [1]
        and workload.publishers[0].qos == 1
        and not workload.publishers[0].rate
    )


def command(*parts: bytes) -> bytes:
    """A command in the Redis protocol."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def ask(address: BrokerAddress, *parts: bytes) -> bytes:
    """The first bytes of one answer. Raises LoadTestError."""
    with socket.create_connection(address[:2], PATIENCE_S) as connection:
        connection.sendall(command(*parts))
        return connection.recv(4096)


def run(workload: Workload, server: BrokerAddress, pids: Sequence[int], progress: Progress) -> WorkloadRun:
    """Read results. Raises LoadTestError."""
    empty_bytes = taken(pids).resident_bytes
    ask(server, b"DEL", STREAM)
    ask(server, b"XGROUP", b"CREATE", STREAM, GROUP, b"0", b"MKSTREAM")
    work = _Work(workload, server)
    try:
        timing = workload.timing
        work.go_on(timing.warm_up_s)
        work.waits_us.clear()
        before, begun_ns = _figures(work, pids), monotonic_ns()
        progress("measuring", 0.5)
        work.go_on(timing.duration_s)
        seconds = (monotonic_ns() - begun_ns) / 1e9
        after = _figures(work, pids)
        delivery = Latency.of(sorted(work.waits_us.items()))
        work.drain(timing.drain_s)
    except OSError as error:
        raise BrokerRefuses(f"Redis: {error.strerror}") from None
    finally:
        work.close()
    sent, acked, delivered, broker_s, own_s = (now - then for now, then in zip(after, before, strict=True))
    return WorkloadRun(
        devices=workload.devices,
        connect_s=0,
        seconds=round(seconds, 3),
        sent_per_s=round(sent / seconds, 1),
        acked_per_s=round(acked / seconds, 1),
        delivered_per_s=round(delivered / seconds, 1),
        refused=0,
        repeated=0,
        lost=work.sent - work.delivered,
        unacknowledged=work.sent - work.acked,
        delivery=delivery,
        acknowledging=None,
        broker_cores=round(broker_s / seconds, 3),
        generator_cores=round(own_s / seconds, 3),
        broker_resident_bytes=taken(pids).resident_bytes,
        slices=[],
        broker_empty_bytes=empty_bytes,
    )


def _figures(work: _Work, pids: Sequence[int]) -> tuple[float, ...]:
    own = os.times()
    return work.sent, work.acked, work.delivered, taken(pids).cpu_s, own.user + own.system


class _Work:
    """Publishers that keep their windows full, and a consumer that reads again after each answer."""

    def __init__(self, workload: Workload, server: BrokerAddress) -> None:
        group = workload.publishers[0]
        self.sent = self.acked = self.delivered = 0
        self.waits_us: dict[int, int] = {}
        self._sizes = group.sizes
        self._is_publishing = True
        self._selector = selectors.DefaultSelector()
        self._answers: dict[socket.socket, bytes] = {}
        self._consumer = self._connection(server)
        self._read(b"")
        for publisher in [self._connection(server) for _ in range(group.count)]:
            self._publish(publisher, group.window)

    def _connection(self, server: BrokerAddress) -> socket.socket:
        connection = socket.create_connection(server[:2], PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ)
        self._answers[connection] = b""
        return connection

    def _publish(self, publisher: socket.socket, count: int) -> None:
        due = b"%020d" % monotonic_ns()
        payloads = (due.ljust(self._sizes[(self.sent + i) % len(self._sizes)], b".") for i in range(count))
        publisher.sendall(b"".join(command(b"XADD", STREAM, b"*", b"p", payload) for payload in payloads))
        self.sent += count

    def _read(self, acknowledging: bytes) -> None:
        """Read more. The answer to PING marks the end of the others."""
        options = (b"COUNT", b"%d" % READ_COUNT, b"BLOCK", b"20", b"STREAMS", STREAM, b">")
        reading = command(b"XREADGROUP", b"GROUP", GROUP, b"c", *options)
        self._consumer.sendall(acknowledging + reading + command(b"PING"))

    def go_on(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for key, _ in self._selector.select(TICK_S):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                self._hear(connection)

    def drain(self, seconds: float) -> None:
        self._is_publishing = False
        until_s = time.monotonic() + seconds
        while self.delivered < self.sent and time.monotonic() < until_s:
            self.go_on(TICK_S)

    def _hear(self, connection: socket.socket) -> None:
        came = connection.recv(RECEIVE_BYTES)
        if not came:
            raise BrokerRefuses("Redis closed a connection")
        data = self._answers[connection] + came
        if connection is self._consumer:
            is_whole = data.endswith(b"+PONG\r\n")
            if is_whole:
                self._take(data)
            self._answers[connection] = b"" if is_whole else data
            return
        if data[:1] == b"-":
            raise LoadTestError(f"Redis: {data.splitlines()[0].decode(errors='replace')}")
        answers = data.count(b"\r\n") // 2  # $SIZE, and the entry's id
        end = len(data) if data.endswith(b"\n") and data.count(b"\r\n") % 2 == 0 else data.rfind(b"$")
        self._answers[connection] = data[end:]
        self.acked += answers
        if self._is_publishing and answers:
            self._publish(connection, answers)

    def _take(self, data: bytes) -> None:
        found = ENTRY.findall(data)
        now_ns = monotonic_ns()
        for _, due in found:
            us = (now_ns - int(due)) // 1_000
            self.waits_us[us] = self.waits_us.get(us, 0) + 1
        self.delivered += len(found)
        self._read(command(b"XACK", STREAM, GROUP, *[number for number, _ in found]) if found else b"")

    def close(self) -> None:
        self._selector.close()
        for connection in self._answers:
            connection.close()
