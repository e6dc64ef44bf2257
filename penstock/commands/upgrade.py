"""`penstock upgrade`: replace running gateways, or a server, by the release that is installed now."""

import os
import select
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import PenstockError, UsageError
from penstock.servers.process import SUPERVISED

WHAT_TO_GIVE = "give the process id of a `penstock gateway` or a `penstock serve`"


def upgrade(
    pid: Annotated[
        int,
        typer.Argument(metavar="PID", min=1, help="Process id of a `penstock gateway` or a `penstock serve`."),
    ],
    timeout_s: Annotated[
        float, typer.Option(min=0, help="How long to wait; clients with TLS are seen off first.")
    ] = 120.0,
) -> None:
    """Replace running gateways, or a server, by the release that is installed now.

    Those of `penstock serve --gateways N` are replaced one after the other; `penstock serve` alone is replaced with its
    store, which is closed and opened. Plain connections stay; clients with TLS reconnect. It is the same as SIGUSR2. If
    the new process does not come to serve, the old one goes on; its log says why.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        raise UsageError(
            f"process {pid}: {error.strerror}; give the process id of a `penstock gateway` or `serve`"
        ) from None
    if not _heeds(pid):
        raise UsageError(f"process {pid} heeds no SIGUSR2; {WHAT_TO_GIVE}")
    supervised = _gateways_of(pid)
    try:
        replaced = {each: os.pidfd_open(each) for each in supervised} if supervised else {pid: process}
        signal.pidfd_send_signal(process, signal.SIGUSR2)
    except OSError as error:
        raise PenstockError(f"process {pid}: {error.strerror}") from None
    deadline_s = time.monotonic() + timeout_s
    for each, descriptor in replaced.items():
        has_ended, _, _ = select.select([descriptor], [], [], max(0, deadline_s - time.monotonic()))
        if not has_ended:
            raise PenstockError(f"process {each} goes on after {timeout_s:g} s; its log says why")
        typer.echo(f"process {each} has handed over")


def _gateways_of(pid: int) -> list[int]:
    """The gateways that this process supervises."""
    return sorted(int(each.name) for each in Path("/proc").glob("[0-9]*") if _is_gateway_of(pid, each))


def _is_gateway_of(pid: int, process: Path) -> bool:
    try:
        is_child = f"PPid:\t{pid}\n" in (process / "status").read_text()
        return is_child and f"{SUPERVISED}=gateway-".encode() in (process / "environ").read_bytes()
    except OSError:  # it is gone, or another user's
        return False


def _heeds(pid: int) -> bool:
    """Whether SIGUSR2 has a handler there; without one it would end the process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name == "SigCgt":
            return bool(int(mask, 16) >> (signal.SIGUSR2 - 1) & 1)
    return False
