"""Worst cases for a store that is another process than the gateway: cases of `python -m tests.bench.worst --apart`.

A client of the gateway sends what it may, and leaves; the loops of both have a clock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from loadtest.chaos.part import Part
from tests.bench.turn_clock import TurnClocks, clocked
from tests.interop.programs import mark_ready
from tests.support.mqtt_byte_client import connected
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess

Longest = dict[str, float]
"""Milliseconds, by process: `store`, `gateway`."""


def results(cases: dict[str, bytes], rounds: int) -> Iterator[tuple[str, Longest]]:
    """The longest turns of each case, the median of some rounds; one store and one gateway for all of them.

    What is sent while the client is there counts as the case's, what follows from its leaving as "NAME, leaving".
    """
    with tempfile.TemporaryDirectory() as made, clocked(Path(made) / "clocks") as clocks:
        folder = Path(made)
        store, port = StoreProcess(folder), free_port()
        command = ["gateway", "--store", store.url, "--listen", f"mqtt://127.0.0.1:{port}"]
        gateway = Part(folder / "gateway.log", command, {})
        try:
            mark_ready(port)
            for name, data in cases.items():
                found = [_longest(port, data, clocks) for _ in range(rounds)]
                yield name, _medians([there for there, _ in found])
                yield f"{name}, leaving", _medians([leaving for _, leaving in found])
            assert "Traceback" not in store.log_text(), store.log_text()
        finally:
            gateway.kill()
            store.close()


def _longest(port: int, data: bytes, clocks: TurnClocks) -> tuple[Longest, Longest]:
    client = connected(port, b"worst")
    clocks.settle()
    clocks.longest_ms()
    with suppress(OSError, AssertionError):
        client.send(data)
        client.until_pong()
    clocks.settle()
    there = clocks.longest_ms()
    client.close()
    clocks.settle()
    return there, clocks.longest_ms()


def _medians(found: list[Longest]) -> Longest:
    return {name: sorted(each.get(name, 0.0) for each in found)[len(found) // 2] for name in ("store", "gateway")}
