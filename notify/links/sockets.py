"""Sockets that listen."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNIX_SEND_BYTES = 1 << 20
JOINED_BYTES = 16 << 10  # so much is copied into one piece in less time than the system takes for several


def widen(transport: asyncio.Transport) -> None:
    """Let a Unix socket hold what a busy turn sends. By itself it takes a tenth of that, and the other side has to run.

    The system may allow less (net.core.wmem_max). TCP sees to that itself.
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


def listening_socket(
    family: int, address: tuple[object, ...], backlog: int, shares_port: bool = False
) -> socket.socket:
    """`shares_port`: other processes may listen on the same one. Raises OSError."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


MOST_UNIX_PATH_BYTES = 107  # of sockaddr_un


@contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """By what the system finds a Unix socket, however long its path is. Raises OSError."""
    if len(os.fsencode(path)) <= MOST_UNIX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listening_unix_socket(path: Path, backlog: int, allowed: int) -> socket.socket:
    """Takes the place of what a killed process left there. `allowed`: who may connect, as file mode. Raises OSError."""
    remove_leftover(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o777 & ~allowed)
    try:
        listening.setblocking(False)
        with unix_address(path) as address:
            listening.bind(address)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening


def remove_leftover(path: Path) -> None:
    """What an earlier process left there goes. Raises OSError if one that runs listens there; the loop would not."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as probe, unix_address(path) as address:
                if probe.connect_ex(address) == 0:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            path.unlink()
