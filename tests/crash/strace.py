"""Runs a server under strace: to kill it at a system call of one's choice, to slow one down, to see their order."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ATTACH_TIMEOUT_S = 20
WRITES = ("pwrite64", "pwritev", "write", "writev", "sendto", "sendmsg")
SYNCS = ("fdatasync", "fsync")
_CALL = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+|\?)")
_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (-?\d+|\?)")
_HEX = re.compile(r"\\x([0-9a-f]{2})")


def find() -> str:
    strace = shutil.which("strace")
    assert strace, "strace is missing; apt-get install strace"
    return strace


class Call(NamedTuple):
    """A finished system call; `began` and `ended` are line numbers, so that calls can be put in order."""

    name: str
    arguments: str
    result: int
    began: int
    ended: int

    @property
    def target(self) -> str:
        """What the first argument's descriptor stands for: a path, or TCP:[...]."""
        found = re.match(r"\d+<((?:[^>]|->)*)>", self.arguments)
        return _HEX.sub(lambda match: chr(int(match[1], 16)), found[1]) if found else ""

    @property
    def data(self) -> bytes:
        """Everything that is quoted in the arguments: of a write, what was to be written."""
        return b"".join(bytes.fromhex("".join(_HEX.findall(text))) for text in re.findall(r'"([^"]*)"', self.arguments))


def kill_at(call: str, number: int, output: Path) -> tuple[str, ...]:
    """A prefix that runs a server until some thread of it makes its `number`-th system call of that name."""
    inject = f"inject={call}:signal=SIGKILL:when={number}"  # with --seccomp-bpf no signal would come
    return (find(), "-D", "-f", f"--trace={call}", "-e", inject, "-o", str(output))


def record_from_start(calls: Iterable[str], output: Path) -> tuple[str, ...]:
    """A prefix that writes down these system calls, for read_trace()."""
    return (find(), "-D", "-f", "--seccomp-bpf", *_recording(calls), "-o", str(output))


@contextmanager
def recording(pid: int, calls: Iterable[str], output: Path) -> Iterator[None]:
    """Writes down the system calls of a running process, for read_trace()."""
    with _attached(pid, signal.SIGINT, *_recording(calls), "-o", str(output)):
        yield


@contextmanager
def delayed(pid: int, call: str, path: Path, delay_ms: int) -> Iterator[None]:
    """Every call on one file takes that much longer before it begins; at the end those that wait go on at once."""
    options = "-P", str(path), f"--trace={call}", "-e", f"inject={call}:delay_enter={delay_ms}ms"
    with _attached(pid, signal.SIGKILL, *options):
        yield


@contextmanager
def failing(pid: int, call: str, path: Path, error: str, number: int, once: bool = False) -> Iterator[None]:
    """From the `number`-th on every call on one file fails, and does nothing; or that one alone."""
    when = f"{number}" if once else f"{number}+"
    options = "-P", str(path), f"--trace={call}", "-e", f"inject={call}:error={error}:when={when}"
    with _attached(pid, signal.SIGKILL, *options):
        yield


@contextmanager
def failing_then_killed(pid: int, path: Path, number: int, call: str, new: Path) -> Iterator[None]:
    """The `number`-th fdatasync on a file fails; the first `call` on that file, or on `new`, kills the process."""
    faults = f"inject=fdatasync:error=EIO:when={number}", f"inject={call}:signal=SIGKILL:when=1"
    paths = "-P", str(path), "-P", str(new)
    with _attached(pid, signal.SIGKILL, *paths, f"--trace=fdatasync,{call}", "-e", faults[0], "-e", faults[1]):
        yield


def _recording(calls: Iterable[str]) -> tuple[str, ...]:
    return ("-yy", "-xx", "-s", "1000000", f"--trace={','.join(calls)}")


@contextmanager
def _attached(pid: int, end: signal.Signals, *options: str) -> Iterator[None]:
    """Every thread of the process is traced inside. `end` is what stops strace."""
    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    strace = subprocess.Popen([find(), "-f", "-p", str(pid), *options], stderr=subprocess.PIPE, text=True)
    assert strace.stderr is not None
    try:
        for line in strace.stderr:
            if "attached" in line:
                found = re.search(r"with (\d+) threads", line)
                assert int(found[1] if found else 1) >= threads, line
                break
        else:
            pytest.fail("strace could not attach: it needs the right to trace processes")
        yield
    finally:
        strace.send_signal(end)
        strace.communicate(timeout=ATTACH_TIMEOUT_S)


def read_trace(output: Path) -> list[Call]:
    """The calls in the order in which they ended."""
    calls = []
    begun: dict[tuple[str, str], tuple[str, int]] = {}
    for number, line in enumerate(output.read_text().splitlines()):
        if found := _BEGUN.match(line):
            begun[found[1], found[2]] = found[3], number
        elif (found := _RESUMED.match(line)) and (found[1], found[2]) in begun:
            arguments, began = begun.pop((found[1], found[2]))
            calls.append(Call(found[2], arguments + found[3], _result(found[4]), began, number))
        elif found := _CALL.match(line):
            calls.append(Call(found[2], found[3], _result(found[4]), number, number))
    return calls


def _result(text: str) -> int:
    return -1 if text == "?" else int(text)
