"""What a service manager (systemd with `Type=notify`) is told of this process."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from penstock.servers.process import SUPERVISED

NOTIFY_SOCKET = "NOTIFY_SOCKET"
"""Environment variable with the manager's socket: a path, or `@` and an abstract name."""


def tell_ready() -> None:
    """This process serves."""
    _tell("READY=1")


def tell_successor(pid: int) -> None:
    """Another process does what this one did; this one ends. To be said by the one that the manager knows."""
    _tell(f"MAINPID={pid}")


def _tell(text: str) -> None:
    """Without a manager nobody is told; nor by a process that has a supervisor, which the manager does not know."""
    address = os.environ.get(NOTIFY_SOCKET, "")
    if not address or os.environ.get(SUPERVISED):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(text.encode(), address)
