"""Sockets between a store and its users, as both sides treat them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNIX_SEND_BYTES = 1 << 20
JOINED_BYTES = 16 << 10  # the system takes longer for several pieces than a copy of so many bytes takes
MOST_UNIX_PATH_BYTES = 107  # of sockaddr_un


def widen(transport: asyncio.Transport) -> None:
    """Let a Unix socket hold what a busy turn sends. Its default is a tenth of that.

    The system may allow less (net.core.wmem_max). TCP adapts its buffers by itself.
    """
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family == socket.AF_UNIX:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BYTES)


def write(transport: asyncio.Transport, chunks: list[bytes]) -> None:
    """Send chunks in one write."""
    if len(chunks) > 1 and sum(map(len, chunks)) > JOINED_BYTES:
        transport.writelines(chunks)
    else:
        transport.write(b"".join(chunks))


@contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """An address of a Unix socket that the system takes, however long the path is. Raises OSError."""
    if len(os.fsencode(path)) <= MOST_UNIX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
