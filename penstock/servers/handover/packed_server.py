"""What a server with its own store passes on, whole: it is packed before the store is closed, and serves this process
itself if the next one does not come to serve.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn, Protocol

from gateway.handover.moving import MovingIn, PackedBatch
from gateway.handover.state import decode_batch
from penstock.servers.handover.channel import HandOverFailed
from penstock.servers.handover.gateway_state import HandedServer


class OldServer(Protocol):
    """Where a server that goes on has the old one's clients from."""

    @property
    def server(self) -> HandedServer: ...

    def has_opened(self) -> None:
        """The store is open here."""

    def take_listeners(self, count: int) -> dict[int, list[int]]:
        """The descriptors of the sockets of each address, by its place among the old process's."""

    def take_connections(self, moving: MovingIn) -> None: ...

    def says_serving(self) -> None:
        """From now on the clients are here."""

    def refuse(self, why: str) -> NoReturn:
        """Raises HandOverFailed."""


class PackedServer(NamedTuple):
    """The OldServer that this process was itself. `listeners`: descriptors by the place of the address."""

    server: HandedServer
    listeners: list[list[int]]
    batches: list[PackedBatch]

    def has_opened(self) -> None:
        """Nobody waits for that."""

    def take_listeners(self, count: int) -> dict[int, list[int]]:
        assert count == len(self.listeners)
        return dict(enumerate(self.listeners))

    def take_connections(self, moving: MovingIn) -> None:
        for descriptors, state in self.batches:
            moving.take(decode_batch(state), descriptors)

    def says_serving(self) -> None:
        """Nobody waits for that."""

    def refuse(self, why: str) -> NoReturn:
        raise HandOverFailed(why)
