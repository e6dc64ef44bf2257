"""The port of a store that does not lead its cluster: it refuses every peer, and says who leads if it knows."""

from __future__ import annotations

import socketserver
import threading
from types import TracebackType
from typing import Self

from store.wire.handshake import ServerHandshake
from store.wire.messages import Refused, RefusedReason, Role


class StandbyStore:
    """Listens while it is a context."""

    def __init__(self, leader: str = "") -> None:
        """`leader`: HOST:PORT; empty: it knows of none."""
        self.leader = leader
        self.asked = 0  # connections
        standby = self

        class Refuse(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                standby.asked += 1
                handshake = ServerHandshake(lambda _: standby.refusal, dict.fromkeys(Role))
                while not handshake.is_done:
                    data = self.request.recv(65_536)
                    if not data:
                        return
                    self.request.sendall(handshake.feed(data))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuse)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def refusal(self) -> Refused:
        return Refused(RefusedReason.NOT_LEADER, "another store leads the cluster", leader=self.leader)

    @property
    def place(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
