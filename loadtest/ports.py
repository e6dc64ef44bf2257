"""Ports for servers that are started, killed and started again on the same port."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import time
from contextlib import suppress

HOST = "127.0.0.1"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20

# The range is below the ports that the kernel gives to outgoing connections, so none of these takes a port before its
# server does. Each process begins far from those started just before it (by the golden section): a process that runs
# beside it must not get the port of a server that was killed and will be started again.
_ports = itertools.cycle(range(10_000, 32_000))
for _ in range(os.getpid() * 13_597 % 22_000):
    next(_ports)


def free_port() -> int:
    """A port without a listener, different for each call in this process."""
    while True:
        port = next(_ports)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens. Raises RuntimeError if the process ends first, or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"exited with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port} after {START_TIMEOUT_S} s")
