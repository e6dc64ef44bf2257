"""The cost of a turn that brings messages for the members of a shared subscription: `python -m tests.bench.members`.

No sockets: publishers, members, gateway and store are here, in memory, so it says nothing of the kernel's part, and is
steady within a few hundredths on a busy machine. The lowest twentieth of the runs.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gateway.broker import Broker
from gateway.mqtt.codec import encode
from gateway.mqtt.codec_primitives import decode_varint
from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest
from gateway.sessions.connection import Connection
from gateway.settings import GatewaySettings
from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from store.settings import StoreSettings
from tests.bench.hops import WARM_UP, Loop, Pipe, receive

PUBLISHERS = 64  # each message of a turn is another one's
MEMBERS = 4
TURNS_PER_TICK = 50
PAYLOAD = b"x" * 200


class Side:
    """A client: its connection, and what was sent to it."""

    def __init__(self, broker: Broker, loop: Loop, name: str) -> None:
        self.connection, self.pipe = Connection(broker.connections), Pipe()
        self.connection.connection_made(self.pipe)
        receive(self.connection, encode(Connect(client_id=name, protocol_version=4), 4))
        loop.run()
        self.pipe.take()

    def acknowledgements(self) -> bytes:
        """For every PUBLISH that has come since the last call."""
        return b"".join(b"\x40\2" + packet_id for packet_id in _packet_ids(self.pipe.take()))


def _packet_ids(packets: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packets):
        size, body_at = decode_varint(packets, at + 1)
        if packets[at] & 0xF6 == 0x32:
            id_at = body_at + 2 + int.from_bytes(packets[body_at : body_at + 2], "big")
            yield packets[id_at : id_at + 2]
        at = body_at + size


def measure(folder: Path, messages: int, repeats: int) -> tuple[float, float]:
    """µs for so many messages, each from another publisher, and for the members' acknowledgements."""
    loop = Loop()
    store = MessageStore(StoreSettings(data=folder, flush="async", index_flush_ms=600_000, reserve_bytes=0))
    broker = Broker(LocalStore.join(Hub(store), "gateway"), GatewaySettings(), loop)
    publishers = [Side(broker, loop, f"p{i}") for i in range(PUBLISHERS)]
    members = [Side(broker, loop, f"m{i}") for i in range(MEMBERS)]
    for member in members:
        wanted = SubscriptionRequest("$share/g/load/+/report", QoS.AT_LEAST_ONCE)
        receive(member.connection, encode(Subscribe(1, (wanted,)), 4))
        loop.run()
        member.pipe.take()
    packet = partial(Publish, payload=PAYLOAD, qos=QoS.AT_LEAST_ONCE, packet_id=1)
    packets = [encode(packet(f"load/{i}/report"), 4) for i in range(PUBLISHERS)]
    handed, acknowledged, delivered = [], [], 0
    for at in range(WARM_UP + repeats):
        chosen = [(at * messages + i) % PUBLISHERS for i in range(messages)]
        start_ns = time.perf_counter_ns()
        for i in chosen:
            receive(publishers[i].connection, packets[i])
        loop.run()
        handed.append((time.perf_counter_ns() - start_ns) / 1_000)
        answers = [(member, member.acknowledgements()) for member in members]
        delivered += sum(len(answer) // 4 for _, answer in answers)
        start_ns = time.perf_counter_ns()
        for member, answer in answers:
            if answer:
                receive(member.connection, answer)
        loop.run()
        acknowledged.append((time.perf_counter_ns() - start_ns) / 1_000)
        for i in chosen:
            publishers[i].pipe.take()
        if at % TURNS_PER_TICK == 0:
            broker.tick()
            loop.run()
    store.close()
    if delivered != messages * (WARM_UP + repeats):
        raise RuntimeError(f"{delivered} of {messages * (WARM_UP + repeats)} messages arrived")
    return sorted(handed)[repeats // 20], sorted(acknowledged)[repeats // 20]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2_000)
    repeats = parser.parse_args().repeats
    gc.set_threshold(50_000, 20, 50)  # as a server does
    shared_memory = Path("/dev/shm")
    for messages in (1, 4, 16, 64):
        with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
            handed_us, acknowledged_us = measure(Path(folder), messages, repeats)
        each_us = (handed_us + acknowledged_us) / messages
        print(
            f"{messages} messages: {handed_us:.1f} µs, acknowledged {acknowledged_us:.1f} µs, {each_us:.1f} each",
            flush=True,
        )


if __name__ == "__main__":
    main()
