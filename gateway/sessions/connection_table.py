"""The numbers of a gateway's connections, and the connections without a session. No I/O, no clock."""

from __future__ import annotations

from gateway.sessions.connection import Connection


class ConnectionTable:
    """Owner of the connections without a session, and of the counts of all connections."""

    def __init__(self) -> None:
        self.connections = 0  # open now
        self.new: dict[Connection, float] = {}  # without a session so far, oldest first, and since when (loop's clock)
        self.sockets_total = 0  # that were opened since the start
        self.opened_total = 0  # of these, those that got a session
        self.most_online = 0

    @property
    def online(self) -> int:
        """Clients whose CONNACK was sent."""
        return self.connections - len(self.new)

    def add(self, connection: Connection, now_s: float) -> None:
        self.connections += 1
        self.sockets_total += 1
        self.new[connection] = now_s
        if connection.entrance is not None:
            connection.entrance.connections += 1

    def opened(self, connection: Connection) -> None:
        """The connection has a session, and its CONNACK is written."""
        self.opened_total += 1
        self.new.pop(connection, None)
        self.most_online = max(self.most_online, self.online)

    def remove(self, connection: Connection) -> None:
        """The connection has ended."""
        self.connections -= 1
        if connection.entrance is not None:
            connection.entrance.connections -= 1
        self.new.pop(connection, None)
