"""Ten thousand clients that come at once, and again: they are admitted in turn, and who is here stays and is served."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect
from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S
from tests.support.mqtt_swarm import Swarm, raise_descriptor_limit

CLIENTS = 10_000
AT_ONCE = 3_000  # fewer than the system queues for a listener
PATIENCE_S = 120
KEEP_ALIVE_S = 2


class Live:
    """A client with a short keep alive that goes on asking whether the server is there."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.sendall(encode(Connect(name, 4, keep_alive_s=KEEP_ALIVE_S), 4))
        assert self._socket.recv(4) == b"\x20\2\0\0"
        self._stop = threading.Event()
        self.answers = 0
        self.longest_s = 0.0
        self.is_lost = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            asked_s = time.monotonic()
            try:
                self._socket.sendall(b"\xc0\0")
                self.is_lost = self._socket.recv(2) != b"\xd0\0"
            except OSError:
                self.is_lost = True
            if self.is_lost:
                return
            self.answers += 1
            self.longest_s = max(self.longest_s, time.monotonic() - asked_s)


@pytest.mark.parametrize("connects_per_s", [0, 4_000])
def test_a_storm_of_clients(penstock_server: ServerFactory, connects_per_s: int) -> None:
    raise_descriptor_limit(CLIENTS)
    server = penstock_server(settings={"store.flush": "async", "gateway.listener_connects_per_s": connects_per_s})
    with Live(server.port, "live") as live, Swarm("device-", [f"device/{i}" for i in range(CLIENTS)]) as swarm:
        swarm.at_once = AT_ONCE
        took_s = []
        for _ in range(2):
            swarm.connect([server.port])
            took_s.append(swarm.poll(swarm.all_online, PATIENCE_S))
            swarm.drop_all()
        assert (swarm.refused, live.is_lost) == (0, False)
        assert live.answers
        if connects_per_s:
            assert min(took_s) > (CLIENTS - connects_per_s) / connects_per_s
    print(f"all in after {took_s[0]:.1f} s and {took_s[1]:.1f} s; longest answer {live.longest_s * 1000:.0f} ms")
