"""The programs in examples/, each with a real store, and gateways where there are devices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.chaos.part import Part
from tests.support.server_process import ROOT, free_port
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


class Programs:
    """Examples that run, and what they print."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, f"examples/{program}", "--store", self._url, *arguments]
        with self.output(name).open("wb") as output:
            self._running[name] = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        return self._running[name]

    def output(self, name: str) -> Path:
        return self._folder / f"{name}.out"

    def lines(self, name: str) -> list[str]:
        return [line[:-1] for line in self.output(name).read_text().splitlines(keepends=True) if line.endswith("\n")]

    def run(self, name: str, program: str, *arguments: str, code: int = 0) -> list[str]:
        assert self.start(name, program, *arguments).wait(60) == code, self.output(name).read_text()
        return self.lines(name)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


@pytest.fixture
def programs(tmp_path: Path, url: str) -> Iterator[Programs]:
    programs = Programs(tmp_path, url)
    yield programs
    programs.close()


@pytest.mark.parametrize("program", EXAMPLES)
def test_help(programs: Programs, program: str) -> None:
    assert any(line.startswith("usage:") for line in programs.run("help", program, "--help"))
    assert program in (ROOT / "examples" / "README.md").read_text()


@pytest.mark.parametrize("command", ["orders.py place", "orders.py work", "inference.py ask", "inference.py work"])
def test_the_store_may_stand_behind_the_command(command: str) -> None:
    """Tried with an address that is none, which is refused by name."""
    words = [*command.split(), *(["x"] if command.endswith("ask") else []), "--store", "nowhere"]
    done = subprocess.run(
        [sys.executable, f"examples/{words[0]}", *words[1:]], cwd=ROOT, capture_output=True, text=True
    )
    assert "AddressError: nowhere: not the address of a store" in done.stderr


def test_orders(programs: Programs) -> None:
    workers = ("w1", "w2")
    for worker in workers:
        programs.start(worker, "orders.py", "work", "--seconds", "0.01")
    wait_until(lambda: all(programs.lines(worker) == ["ready"] for worker in workers), 30)
    assert programs.run("place", "orders.py", "place", "--orders", "20") == ["20 orders placed"]
    wait_until(lambda: sum(len(programs.lines(worker)) for worker in workers) >= 82, 60)
    steps: dict[str, list[str]] = {}
    for worker in workers:
        assert len(programs.lines(worker)) > 1
        for line in programs.lines(worker)[1:]:
            order, step = line.split()
            steps.setdefault(order, []).append(step)
    assert steps == {f"order-{n}": ["placed", "paid", "packed", "shipped"] for n in range(20)}


@pytest.mark.catalogue("P61")
def test_inference_when_a_worker_is_killed(programs: Programs) -> None:
    hung = programs.start("w1", "inference.py", "work", "--seconds", "600")
    programs.start("ask", "inference.py", "ask", "BUY NOW")
    wait_until(lambda: bool(programs.lines("w1") and programs.lines("ask")), 30)
    job = programs.lines("ask")[0].removeprefix("job ")
    assert programs.lines("w1") == [f"{job} attempt 1"]
    (row,) = programs.run("running", "inference.py", "status")
    assert json.loads(row.removeprefix(job)) == {"state": "running", "worker": str(hung.pid), "attempt": 1}
    hung.kill()
    other = programs.start("w2", "inference.py", "work", "--seconds", "0.1")
    wait_until(lambda: len(programs.lines("ask")) == 2, 30)
    assert programs.lines("ask")[1] == f"spam (by worker {other.pid})"

    def newest() -> dict[str, object]:
        (row,) = programs.run("done", "inference.py", "status")
        found: dict[str, object] = json.loads(row.removeprefix(job))
        return found

    wait_until(lambda: newest()["state"] == "done", 30)
    assert newest() == {"state": "done", "worker": str(other.pid), "attempt": 2}


@pytest.mark.catalogue("P61")
def test_fleet(programs: Programs, running: StoreProcess, tmp_path: Path) -> None:
    port = free_port()
    command = ["gateway", "--store", running.url, "--listen", f"mqtt://127.0.0.1:{port}"]
    gateway = Part(tmp_path / "gateway.log", command, {})
    try:
        for name in ("truck-1", "truck-2"):
            programs.start(name, "fleet.py", "device", name, "--gateway", f"127.0.0.1:{port}")
        for name in ("truck-1", "truck-2"):
            wait_until(lambda name=name: programs.lines(name) == [f"{name} is ready"], 30)  # type: ignore[misc]
        said = programs.run("all", "fleet.py", "send", "open doors", "truck-1", "truck-2")
        assert sorted(said) == ["truck-1 did it", "truck-2 did it"]
        assert programs.lines("truck-1")[1:] == ["truck-1: open doors"]
        some = programs.run("some", "fleet.py", "send", "--timeout", "1", "halt", "truck-2", "truck-9", code=1)
        assert some == ["truck-2 did it", "no answer from truck-9"]
    finally:
        gateway.kill()
