"""Network and mount namespaces for chaos runs, so that lost packets and full disks affect nothing else.

The namespaces belong to the process: all changes in them end with the process and its children, however they end.
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
"""Environment variable with the outer namespaces; a process has it only if it got namespaces of its own."""
NAMESPACES = ("net", "mnt")
SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x41


def enter(arguments: list[str]) -> None:
    """Run the command with these arguments again in new namespaces, if the system allows it; else go on here."""
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
    """Whether this process runs in namespaces of its own."""
    outside = os.environ.get(INSIDE, "").split()
    return bool(outside) and not set(outside) & set(_namespaces().split())


def begin() -> None:
    """Bring up the loopback interface, which is down in a new namespace."""
    if is_own():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


def _namespaces() -> str:
    return " ".join(os.readlink(Path("/proc/self/ns") / name) for name in NAMESPACES)
