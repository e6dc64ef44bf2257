"""Sockets that listen."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from store.wire.sockets import unix_address


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
    """Remove the socket of an earlier process. Raises OSError if one that runs listens there; the loop would not."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as probe, unix_address(path) as address:
                if probe.connect_ex(address) == 0:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            path.unlink()
