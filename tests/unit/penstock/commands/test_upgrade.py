"""`penstock upgrade`: it signals only what heeds the signal, and says what became of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from typer.testing import CliRunner

from penstock.cli import app_for

WAITS = "import signal, sys; {}; print('ready', flush=True); sys.stdin.read()"
ENDS = "signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))"
GOES_ON = "signal.signal(signal.SIGUSR2, lambda *_: None)"


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(processes: ExitStack, handles: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WAITS.format(handles)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes.enter_context(process)
    processes.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def run(*arguments: object) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(app_for(["upgrade"]), ["upgrade", *map(str, arguments)])
    return result.output, result.exception


def test_a_process_that_ends_has_handed_over(processes: ExitStack) -> None:
    process = started(processes, ENDS)
    assert run(process.pid) == (f"process {process.pid} has handed over\n", None)


def test_upgrade_reports_a_process_that_goes_on(processes: ExitStack) -> None:
    process = started(processes, GOES_ON)
    _, error = run(process.pid, "--timeout-s", "0.1")
    assert str(error) == f"process {process.pid} goes on after 0.1 s; its log says why"


def test_a_process_that_the_signal_would_kill_is_left_alone(processes: ExitStack) -> None:
    process = started(processes, "pass")
    _, error = run(process.pid)
    assert "heeds no SIGUSR2" in str(error)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_no_process() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    _, error = run(process.pid)
    assert "give the process id of a `penstock gateway`" in str(error)
