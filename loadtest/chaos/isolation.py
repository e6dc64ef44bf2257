"""Namespaces of our own, so that packets can be lost and disks be full here and nowhere else.

They are the process's: whatever it changes there is gone when it and what it started are gone, however that happens.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

INSIDE = "PENSTOCK_CHAOS_OUTSIDE"
"""The namespaces that this process was in before; a child has it only if it got others."""
NAMESPACES = ("net", "mnt")
SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x41


def enter(arguments: list[str]) -> None:
    """Go on in namespaces of our own, with these arguments of the command, or else here."""
    if INSIDE in os.environ:
        return
    unshare = shutil.which("unshare")
    flags = ["--net", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if unshare is None or subprocess.run([unshare, *flags, "true"], capture_output=True).returncode:
        return
    os.environ[INSIDE] = _namespaces()
    sys.stdout.flush()
    os.execv(unshare, [unshare, *flags, "--", sys.executable, "-P", "-m", "penstock", *arguments])


def is_own() -> bool:
    """Whether the namespaces are not those of whoever called the command."""
    outside = os.environ.get(INSIDE, "").split()
    return bool(outside) and not set(outside) & set(_namespaces().split())


def begin() -> None:
    """A new namespace has a loopback interface that is down."""
    if is_own():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


def _namespaces() -> str:
    return " ".join(os.readlink(Path("/proc/self/ns") / name) for name in NAMESPACES)
