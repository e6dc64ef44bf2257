"""`penstock upgrade`: replace a running gateway by the release that is installed now."""

import os
import select
import signal
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import PenstockError, UsageError


def upgrade(
    pid: Annotated[int, typer.Argument(metavar="PID", min=1, help="Process id of a `penstock gateway`.")],
    timeout_s: Annotated[
        float, typer.Option(min=0, help="How long to wait; clients with TLS are seen off first.")
    ] = 120.0,
) -> None:
    """Replace a running gateway by the release that is installed now.

    Plain connections stay; clients with TLS reconnect. It is the same as SIGUSR2. If the new process does not come to
    serve, the old one goes on; its log says why.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        raise UsageError(f"process {pid}: {error.strerror}; give the process id of a `penstock gateway`") from None
    if not _heeds(pid):
        raise UsageError(f"process {pid} heeds no SIGUSR2; give the process id of a `penstock gateway`")
    try:
        signal.pidfd_send_signal(process, signal.SIGUSR2)
    except OSError as error:
        raise PenstockError(f"process {pid}: {error.strerror}") from None
    has_ended, _, _ = select.select([process], [], [], timeout_s)
    if not has_ended:
        raise PenstockError(f"process {pid} goes on after {timeout_s:g} s; its log says why")
    typer.echo(f"process {pid} has handed over")


def _heeds(pid: int) -> bool:
    """Whether SIGUSR2 has a handler there; without one it would end the process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name == "SigCgt":
            return bool(int(mask, 16) >> (signal.SIGUSR2 - 1) & 1)
    return False
