"""QoS 0 at full speed through a store and gateways of its own: who reads gets all of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest
from tests.conftest import ServerFactory
from tests.support.server_process import PenstockServer

pytestmark = pytest.mark.topologies("one process", "two gateways", nightly=("shared port",))

ANSWER_S = 120
MESSAGES_AT_ONCE = 1_000
MESSAGES = 400_000
MOST_BEHIND = 150_000  # of these; a publisher without bounds gets further ahead


@contextmanager
def connected(port: int, client_id: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as client:
        client.sendall(encode(Connect(client_id, 4, clean_start=True), 4))
        assert client.recv(4, socket.MSG_WAITALL) == b"\x20\x02\x00\x00"
        yield client


def read(client: socket.socket, size: int, sizes: list[int]) -> None:
    """Take so many bytes, or what there is within the time."""
    buffer = bytearray(1 << 20)
    left = size
    while left and (taken := client.recv_into(buffer, min(left, len(buffer)))):
        left -= taken
        sizes.append(taken)


def test_none_is_lost(penstock_server: ServerFactory) -> None:
    server: PenstockServer = penstock_server(flush="async", settings={"gateway.qos0_lag_messages": MOST_BEHIND})
    message = encode(Publish("fast/1", b"x" * 100, QoS.AT_MOST_ONCE), 4)
    size = MESSAGES * len(message)
    with connected(server.port, "reader") as reader, connected(server.port, "writer") as writer:
        reader.sendall(encode(Subscribe(1, (SubscriptionRequest("fast/#", QoS.AT_MOST_ONCE),)), 4))
        assert reader.recv(5, socket.MSG_WAITALL)[:2] == b"\x90\x03"
        sizes: list[int] = []
        reading = threading.Thread(target=read, args=(reader, size, sizes))
        reading.start()
        for _ in range(MESSAGES // MESSAGES_AT_ONCE):
            writer.sendall(message * MESSAGES_AT_ONCE)
        reading.join(ANSWER_S)
        assert sum(sizes) == size
