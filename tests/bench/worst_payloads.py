"""The cost of one large message for the loops of a store and a gateway, stored compressed or as it is.

    python -m tests.bench.worst_payloads

Each is published by the client of the store, and read by MQTT clients; longest turns in ms of CPU time, as
tests/bench/turn_clock.py measures them.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from loadtest.chaos.part import Part
from penstock.sync import Client
from tests.bench.turn_clock import TurnClocks, clocked
from tests.interop.programs import mark_ready
from tests.support.mqtt_byte_client import ByteClient, connected, subscribe
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

MOST_BYTES = 4_000_000  # store.max_plain_bytes and wire.max_frame_bytes are 4 MiB
READERS = 11
ROUNDS = 3


def text_of(size_bytes: int) -> bytes:
    """JSON with numbers, of which zstd makes a third."""
    randomly = random.Random(size_bytes)
    lines = (json.dumps({"id": number, "value": randomly.random()}) for number in range(size_bytes // 30))
    return "".join(lines).encode()[:size_bytes]


def subscribed(port: int, name: str, topic_filter: bytes) -> ByteClient:
    client = connected(port, name.encode())
    client.send(subscribe(topic_filter))
    client.take()
    return client


def read(*clients: ByteClient) -> None:
    """A message, by all of them at once."""
    threads = [threading.Thread(target=client.take) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measured(clocks: TurnClocks, action: Callable[[], None]) -> str:
    clocks.settle()
    clocks.longest_ms()
    action()
    clocks.settle()
    return ", ".join(f"{name} {longest:.1f}" for name, longest in sorted(clocks.longest_ms().items()))


def run(client: Client, port: int, clocks: TurnClocks, payload: bytes, name: str) -> None:
    readers = [subscribed(port, f"{name}-{number}", b"live/#") for number in range(READERS)]

    def live() -> None:
        client.publish("live/x", payload)
        read(*readers)

    print(f"{name}: live, {READERS} readers: {measured(clocks, live)}", flush=True)
    for reader in readers:
        reader.close()
    stored = measured(clocks, lambda: void(client.publish(f"retained/{name}", payload, retain=True)))
    late = connected(port, name.encode())

    def retained() -> None:
        late.send(subscribe(f"retained/{name}".encode()))
        late.take()
        late.take()

    print(f"{name}: to be retained: {stored}; the retained one: {measured(clocks, retained)}", flush=True)
    late.close()


def void(_: object) -> None:
    """What it was is not asked for."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, clocked(Path(folder) / "clocks") as clocks:
        store, port = StoreProcess(Path(folder)), free_port()
        command = ["gateway", "--store", store.url, "--listen", f"mqtt://127.0.0.1:{port}"]
        gateway = Part(Path(folder) / "gateway.log", command, {})
        try:
            mark_ready(port)
            for compress in (True, False):
                with Client(store.url.replace("tcp:", "penstock:"), compress=compress) as client:
                    for size_bytes in (MOST_BYTES, 1_000_000, 100_000):
                        for number in range(ROUNDS):
                            name = f"{size_bytes}-{'compressed' if compress else 'plain'}-{number}"
                            run(client, port, clocks, text_of(size_bytes - number), name)
        finally:
            gateway.kill()
            store.close()


if __name__ == "__main__":
    main()
