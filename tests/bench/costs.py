"""What one more queue, reader, send and so on costs in a gateway with its store: `python -m tests.bench.costs`.

The constants by which a turn is weighed (gateway/mqtt/_costs.pxd, lightqueue/queues/parts/_work.pxi) are such
costs. Each is measured as the difference between few and many, the lowest tenth of the runs, so a busy machine makes
little difference.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gateway.broker import Broker
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest
from gateway.mqtt.properties import Properties
from gateway.sessions.connection import Connection
from gateway.settings import GatewaySettings
from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from store.settings import StoreSettings
from tests.bench.hops import Loop, Pipe, receive

READERS = 1_000
MESSAGES = 100
LEVELS = 13  # 8,192 filters that match one topic
TOPIC = "/".join(["a"] * LEVELS)
FILTERS_AT_ONCE = 256
DRAIN_BYTES = 1 << 20
LOST = 512
KEPT = tuple(f"k/{number}/+" for number in range(10))
OTHER_WORK_BYTES = 64 << 20  # more than a processor has at hand


class Gateway:
    """A gateway with its store in this process, without sockets; what its parts do is timed."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.store = MessageStore(StoreSettings(data=folder, flush="async", index_flush_ms=600_000))
        self.broker = Broker(LocalStore.join(Hub(self.store), "gateway"), GatewaySettings(), self.loop)
        self.loop.run()

    def client(self, name: str, version: int = 4, expiry_s: int = 0) -> tuple[Connection, Pipe]:
        connection, pipe = Connection(self.broker.connections), Pipe()
        connection.connection_made(pipe)
        properties = Properties(session_expiry_interval=expiry_s) if version == 5 else Properties()
        receive(connection, encode(Connect(client_id=name, protocol_version=version, properties=properties), version))
        self.loop.run()
        return connection, pipe

    def subscribe(self, connection: Connection, *filters: str, qos: int = 0) -> None:
        for at in range(0, len(filters), FILTERS_AT_ONCE):
            requests = tuple(SubscriptionRequest(each, QoS(qos)) for each in filters[at : at + FILTERS_AT_ONCE])
            receive(connection, encode(Subscribe(1, requests), connection.version))
            self.loop.run()

    def part(self, name: str, publisher: Connection, data: bytes, others: Sequence[Connection] = ()) -> float:
        """ns of one part of a turn that brings these packets: `in`, `store`, `deliver`.

        `others` bring the same: each one packet at least, whatever that weighs.
        """
        broker, core, taken = self.broker, self.broker.core, dict[str, int]()
        broker.turn.begin()
        core.set_clock()

        def timed(part: str, do: Callable[[], object]) -> None:
            began_ns = time.perf_counter_ns()
            do()
            taken[part] = time.perf_counter_ns() - began_ns

        for other in others:
            receive(other, data)
        timed("in", lambda: receive(publisher, data))
        timed("store", broker.journal.store)
        grown = core.store.queues.collect_grown()
        timed("deliver", lambda: broker.deliverer.grew(grown))
        broker.journal.release()
        broker.turn.send()
        self.loop.run()
        broker.tick()
        self.loop.run()
        return taken[name]


@contextmanager
def gateway() -> Iterator[Gateway]:
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
        made = Gateway(Path(folder))
        yield made
        made.broker.close()
        made.store.close()


def messages(count: int, qos: int = 0, size: int = 100, topic: str = TOPIC, expiry_s: int = 0) -> bytes:
    version, properties = (5, Properties(message_expiry_interval=expiry_s)) if expiry_s else (4, Properties())
    ids = range(1, count + 1) if qos else itertools.repeat(None, count)
    packets = [Publish(topic, b"x" * size, QoS(qos), packet_id=packet_id, properties=properties) for packet_id in ids]
    return b"".join(encode(each, version) for each in packets)


def least(repeats: int, run: Callable[[], float]) -> float:
    """ns; the lowest tenth of the runs."""
    return sorted(run() for _ in range(repeats))[repeats // 10]


def of_a_message(repeats: int) -> dict[str, float]:
    """In a turn, and how much more with each byte."""
    found = {}
    with gateway() as made:
        publisher, _ = made.client("p")
        few, many, large = messages(100, topic="t"), messages(1_100, topic="t"), messages(100, size=8_292, topic="t")
        for part in ("in", "store"):
            few_ns, many_ns, large_ns = (
                least(repeats, partial(made.part, part, publisher, data)) for data in (few, many, large)
            )
            found[f"message, {part}"] = (many_ns - few_ns) / 1_000
            found[f"32 bytes of it, {part}"] = (large_ns - few_ns) / 100 / (8_192 / 32)
    return found


def of_a_queue(repeats: int) -> dict[str, float]:
    """For each message that gets an entry in it, behind another one; and for one that comes after other work."""
    found = {}
    for count in (64, 512, 2_048, 5_000):
        with gateway() as made:
            publishers = [made.client(f"p{number}")[0] for number in range(11)]
            reader, pipe = made.client("r")
            filters = ["/".join(each) for each in itertools.product(("a", "+"), repeat=LEVELS)]
            made.subscribe(reader, *filters[1 : count + 1])
            data, others = messages(1), publishers[1:]

            def run(some: list[Connection], other_work: int, pipe: Pipe = pipe, made: Gateway = made) -> float:
                pipe.take()
                bytearray(other_work).count(1)
                return made.part("store", publishers[0], data, some)  # noqa: B023

            one_ns, eleven_ns = least(repeats, partial(run, [], 0)), least(repeats, partial(run, others, 0))
            found[f"queue, one of {count}, behind another message"] = (eleven_ns - one_ns) / 10 / count
            found[f"queue, one of {count}, after other work"] = (
                least(repeats, partial(run, [], OTHER_WORK_BYTES)) / count
            )
    return found


def of_a_reader(repeats: int) -> dict[str, float]:
    """For each message, and for each turn."""
    found = {}
    kinds = (
        ("that shares", 0, 0, 100),
        ("with its own packets, QoS 1", 1, 0, 3),
        ("of messages that expire", 0, 60, 3),
    )
    for name, qos, expiry_s, more in kinds:
        with gateway() as made:
            publisher, _ = made.client("p", 5 if expiry_s else 4)
            readers = [made.client(f"r{number}") for number in range(READERS)]
            for connection, _ in readers:
                made.subscribe(connection, TOPIC, qos=qos)
            pipes = [pipe for _, pipe in readers]

            def run(data: bytes, made: Gateway = made, pipes: list[Pipe] = pipes) -> float:
                for pipe in pipes:
                    pipe.take()
                return made.part("deliver", publisher, data)  # noqa: B023

            few_ns = least(repeats, partial(run, messages(1, qos, expiry_s=expiry_s)))
            many_ns = least(repeats, partial(run, messages(1 + more, qos, expiry_s=expiry_s)))
            found[f"reader {name}, for each message"] = each_ns = (many_ns - few_ns) / more / READERS
            found[f"reader {name}, for each turn"] = few_ns / READERS - each_ns
    return found


def of_a_send(repeats: int) -> dict[str, float]:
    """Through the loopback interface: to a client that waits, and for each KiB."""
    with (
        gateway() as made,
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as far,
        listening.accept()[0] as near,
    ):
        connection, _ = made.client("s")
        near.setblocking(False)
        connection.fd = near.fileno()

        def send(size: int) -> float:
            made.broker.turn.begin()
            connection.write(b"x" * size)
            began_ns = time.perf_counter_ns()
            connection.flush()
            took_ns = time.perf_counter_ns() - began_ns
            while size:
                size -= len(far.recv(DRAIN_BYTES))
            return took_ns

        small_ns, large_ns = least(repeats, partial(send, 120)), least(repeats, partial(send, 102_520))
    return {"send of 120 bytes": small_ns, "each KiB more": (large_ns - small_ns) / 100}


def of_what_is_kept(repeats: int) -> dict[str, float]:
    """Besides what any message takes, in the store."""
    numbers = itertools.count()

    def new(prefix: str, retain: bool = False) -> Iterator[bytes]:
        while True:
            yield b"".join(encode(Publish(f"{prefix}/{next(numbers)}", b"x", retain=retain), 5) for _ in range(100))

    with gateway() as made:
        publisher, _ = made.client("p", 5, 3_600)

        def each(packets: Iterator[bytes]) -> float:
            return least(repeats, lambda: made.part("store", publisher, next(packets))) / 100

        plain = each(itertools.repeat(encode(Publish("t", b"x"), 5) * 100))
        return {
            "topic, new": each(new("n")) - plain,
            "message, retained": each(itertools.repeat(encode(Publish("t", b"x", retain=True), 5) * 100)) - plain,
            "message, retained, new topic": each(new("r", True)) - plain,
            "message, delayed": each(new("$delayed/3000/d")) - plain,
        }


def of_a_lost_socket(_: int) -> dict[str, float]:
    """What its end takes: of one without a session, with a subscription, with one in a group."""
    found: dict[str, float] = {}
    kinds = (
        ("nothing", ()),
        ("a subscription", ("l/+",)),
        ("kept, 10", KEPT),
        ("a member of a group", ("$share/g/l",)),
    )
    for name, filters in kinds:
        with gateway() as made:
            taken = []
            expiry_s = 3_600 if name.startswith("kept") else 0
            gone = [made.client(f"l{number}", 5, expiry_s)[0] for number in range(LOST)]
            for connection in gone:
                made.subscribe(connection, *filters)
            for connection in gone:
                began_ns = time.perf_counter_ns()
                connection.connection_lost(None)
                made.loop.run()
                taken.append(time.perf_counter_ns() - began_ns)
            found[f"lost socket, {name}"] = sorted(taken)[LOST // 2]
    return found


MEASURED = (of_a_message, of_a_queue, of_a_reader, of_a_send, of_what_is_kept, of_a_lost_socket)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    gc.set_threshold(50_000, 20, 50)  # as a server does
    for measure in MEASURED:
        for name, took_ns in measure(repeats).items():
            print(f"{name:<48}{took_ns:>12,.1f} ns", flush=True)


if __name__ == "__main__":
    main()
