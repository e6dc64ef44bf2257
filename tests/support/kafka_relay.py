"""A relay in front of a Kafka broker, for tests: it leaves requests of some kinds without an answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final

from loadtest.ports import HOST

CREATE_TOPICS: Final = 19
DESCRIBE_CONFIGS: Final = 32
"""Requests by their number (https://kafka.apache.org/protocol)."""


class KafkaRelay:
    """Takes connections at a port that the broker names as its own, until close()."""

    def __init__(self, port: int, broker_port: int) -> None:
        self.url = f"{HOST}:{port}"
        self.held: set[int] = set()
        """Kinds of requests that go no further."""
        self.was_held = threading.Event()
        self._broker_port = broker_port
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # of what was closed
            while True:
                client, _ = self._listening.accept()
                broker = socket.create_connection((HOST, self._broker_port))
                self._sockets += [client, broker]
                threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._answers, args=(broker, client), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        """Each has its length in front, and its kind first."""
        with suppress(OSError), client.makefile("rb") as coming:
            while length := coming.read(4):
                request = coming.read(int.from_bytes(length, "big"))
                if int.from_bytes(request[:2], "big") in self.held:
                    self.was_held.set()
                else:
                    broker.sendall(length + request)
        _end(broker)

    def _answers(self, broker: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := broker.recv(65_536):
                client.sendall(data)
        _end(client)


def _end(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_WR)
