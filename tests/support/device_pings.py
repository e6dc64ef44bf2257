"""A device that waits for its own message again and again, in a process of its own: what others at the server feel.

    python -m tests.support.device_pings PORT

It prints the time of each message (time.monotonic(), s) and how long it took until it came back (ms).
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from gateway.mqtt.packets import Publish, QoS
from tests.support.mqtt_slow_reader import RawClient
from tests.support.server_process import ROOT
from tests.support.stores import wait_until

PAUSE_S = 0.005
PATIENCE_S = 60


class Latencies(NamedTuple):
    number: int
    median_ms: float
    p99_ms: float
    longest_ms: float

    def __str__(self) -> str:
        ends = f"p99 {self.p99_ms:.2f} ms, longest {self.longest_ms:.0f} ms"
        return f"{self.number} pings, median {self.median_ms:.2f} ms, {ends}"


class DevicePings:
    """The process; it has pinged once when it is made."""

    def __init__(self, port: int, log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            command = [sys.executable, "-m", "tests.support.device_pings", str(port)]
            self._process = subprocess.Popen(command, stdout=file, cwd=ROOT)
        wait_until(lambda: len(self._lines()) > 0, PATIENCE_S)

    def _lines(self) -> list[str]:
        return self._log.read_text().splitlines(keepends=True)

    def between(self, since_s: float, until_s: float) -> Latencies:
        """Of what was sent between two times of time.monotonic(), and is back."""
        pairs = (map(float, line.split()) for line in self._lines() if line.endswith("\n"))
        found = sorted(took_ms for at_s, took_ms in pairs if since_s <= at_s < until_s)
        return Latencies(len(found), statistics.median(found), found[len(found) * 99 // 100], found[-1])

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)


def main(port: int) -> None:
    client = RawClient(port, "pings")
    client.subscribe("ping/own", QoS.AT_LEAST_ONCE)
    number = 0
    while True:
        number += 1
        at_s = time.monotonic()
        client.send(Publish("ping/own", b"%d" % number, QoS.AT_LEAST_ONCE, packet_id=number % 65_535 + 1))
        client.payloads(1)
        print(at_s, (time.monotonic() - at_s) * 1_000, flush=True)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
