"""A disk that is full, or fails, for a while under a connected QoS 2 subscriber; and how soon all is well afterwards.

python -m tests.crash.sick_disk FAULT RUNS [SECONDS]: FAULT is full, write, index or sync. A line for each run; the
ledger's complaints, if there are any, and exit code 1. As root, for `full`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from gateway.mqtt.packets import Connect, PingReq, PingResp, Publish, QoS
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection
from loadtest.errors import LoadTestError
from tests.conftest import QUICK
from tests.support.server_process import PenstockServer, ServeOptions

DISK_BYTES = 96 << 20
FEED_S = 0.02
RATE = 3_000  # messages/s of all publishers together, as far as they get
PATIENCE_S = 60.0
REFUSED = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_UNAVAILABLE, ReasonCode.UNSPECIFIED_ERROR)
SETTINGS: dict[str, object] = {
    "store.segment_bytes": 4 << 20,
    "store.retention_bytes": 24 << 20,
    "store.retention_check_s": 1,
    "store.index_flush_ms": 20,
    "gateway.maximum_packet_size_bytes": 65_536,
}


class Fault(StrEnum):
    FULL = "full"  # somebody else takes all room
    WRITE = "write"  # writes of the log fail with EIO
    INDEX = "index"  # writes of the index's files fail with EIO
    SYNC = "sync"  # syncs of the log fail with EIO: the process ends, and is started again


class Outcome(NamedTuple):
    """Seconds from the end of a fault: until a new client had what it published back, a clean SUBSCRIBE its SUBACK,
    and the subscriber everything that was acknowledged. `longest_ping_s` is of a client that only asks."""

    longest_ping_s: float
    new_client_s: float
    suback_s: float
    delivered_s: float
    acknowledged: int
    delivered: int
    complaints: list[str]

    def __str__(self) -> str:
        times = f"longest ping {self.longest_ping_s:.2f} s, new client {self.new_client_s:.2f} s, "
        times += f"SUBACK {self.suback_s:.2f} s, all delivered {self.delivered_s:.2f} s"
        return f"{times}; {self.acknowledged} acknowledged, {self.delivered} delivered"


class Trouble(Protocol):
    """A disk that can be made sick."""

    prefix: tuple[str, ...]  # of the server's command

    def begin(self) -> None: ...

    def end(self, server: PenstockServer) -> None: ...


class FullDisk:
    def __init__(self, folder: Path) -> None:
        self.prefix: tuple[str, ...] = ()
        self._filler = folder / "somebody-elses"

    def begin(self) -> None:
        disk = os.statvfs(self._filler.parent)
        with self._filler.open("wb") as file, suppress(OSError):  # what was free is taken by now: it is full
            os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize)
        with self._filler.open("ab") as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def end(self, server: PenstockServer | None = None) -> None:
        self._filler.unlink()


class FailingCalls:
    """A library that the server is started with; see failing_calls.c."""

    def __init__(self, folder: Path, fault: Fault) -> None:
        self._number = (Fault.SYNC, Fault.WRITE, Fault.INDEX).index(fault) + 1
        self._file = folder / "fault"
        self._set(0)
        library = folder / "failing_calls.so"
        source = Path(__file__).with_name("failing_calls.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.prefix: tuple[str, ...] = ("env", f"LD_PRELOAD={library}", f"FAULT_FILE={self._file}")

    def begin(self) -> None:
        self._set(self._number)

    def _wait_until_felt(self, server: PenstockServer) -> None:
        """Not all files are written all the time."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not re.search("flush failed|refused", server.log_text()) and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def end(self, server: PenstockServer) -> None:
        self._wait_until_felt(server)
        self._set(0)
        with suppress(subprocess.TimeoutExpired):  # where it ends by itself a supervisor starts it again
            server.process.wait(0.5)
            server.restart()

    def _set(self, number: int) -> None:
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("i", number))


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """ext4 on a loop device, or else a tmpfs. Raises LoadTestError."""
    disk, image = folder / "disk", folder / "disk.img"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    made = not _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image)) and not _run(
        "mount", "-o", "loop", str(image), str(disk)
    )
    if not made and (fault := _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "penstock-test", str(disk))):
        raise LoadTestError(fault)
    try:
        yield disk
    finally:
        _run("umount", str(disk))


def _run(*command: str) -> str:
    done = subprocess.run(["env", "PATH=/usr/sbin:/sbin:/usr/bin:/bin", *command], capture_output=True, text=True)
    return done.stderr or "failed" if done.returncode else ""


async def run(server: PenstockServer, trouble: Trouble, seed: int, lasts_s: float) -> Outcome:
    """One run: load, the fault for `lasts_s` seconds, its end."""
    rng = random.Random(seed)
    load = ChaosLoad(server, seed)
    load.subscriber("s-311", {"sick/#": 2}, version=4).subscribes_again = False
    load.publisher("p-311", ("sick/a", 2), ("sick/b", 1), version=4)
    load.publisher("p-5", ("sick/b", 2), ("sick/c", 1)).may_be_refused = True
    for client in load.clients:
        client.pause_s = 0.1
        client.patience_s = 5.0
        client.accepted_refusals = client.accepted_refusals | frozenset(REFUSED)
        client.accepted_farewells = client.accepted_farewells | frozenset(REFUSED)
    async with load.running():
        feeding = asyncio.create_task(_feed(load))
        await asyncio.sleep(rng.uniform(0.2, 1.0))
        pinging = Pinging(server)
        await asyncio.to_thread(trouble.begin)
        await asyncio.sleep(lasts_s * rng.uniform(0.3, 1.0))
        await asyncio.to_thread(trouble.end, server)
        started_s = time.monotonic()
        new_client_s, suback_s = await asyncio.gather(_new_client(server, seed), _clean_subscribe(server))
        feeding.cancel()
        for publisher in load.publishers:
            publisher.budget = 0
        await load.all_acknowledged()
        await load.ledger.wait(lambda: load.ledger.all_delivered, "all deliveries")
        delivered_s = time.monotonic() - started_s
        longest_ping_s = await pinging.end()
    counts = load.ledger.counts
    return Outcome(
        *(longest_ping_s, new_client_s, suback_s, delivered_s),
        *(counts["acknowledged"], counts["delivered"], load.ledger.complaints()),
    )


class Pinging:
    """A client that has nothing stored, and asks whether the server is there; a new one if its connection ends."""

    def __init__(self, server: PenstockServer) -> None:
        self._server = server
        self._asked_s = time.monotonic()
        self._longest_s = 0.0
        self._task = asyncio.create_task(self._run())

    async def end(self) -> float:
        """The longest time that an answer took, or would have taken so far."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return max(self._longest_s, time.monotonic() - self._asked_s)

    async def _run(self) -> None:
        while True:
            with suppress(ConnectionError, LoadTestError, TimeoutError, OSError):
                connection, _ = await MqttConnection.open(self._server.port, Connect("", 4, clean_start=True), 5)
                async with connection:
                    while True:
                        self._answered()
                        await asyncio.sleep(0.02)
                        self._asked_s = time.monotonic()
                        connection.send(PingReq())
                        await connection.receive(PingResp, PATIENCE_S)
            await asyncio.sleep(0.02)

    def _answered(self) -> None:
        self._longest_s = max(self._longest_s, time.monotonic() - self._asked_s)
        self._asked_s = time.monotonic()


async def _feed(load: ChaosLoad) -> None:
    while True:
        for publisher in load.publishers:
            if publisher.budget < 200:
                publisher.allow(int(RATE * FEED_S / len(load.publishers)))
        await asyncio.sleep(FEED_S)


async def _new_client(server: PenstockServer, seed: int) -> float:
    """Until a client with a session has connected, subscribed, published and received."""
    started_s = time.monotonic()
    while time.monotonic() < started_s + PATIENCE_S:
        with suppress(ConnectionError, LoadTestError, TimeoutError, OSError):
            connection, _ = await MqttConnection.open(server.port, Connect(f"new-{seed}", 4, clean_start=False), 5)
            async with connection:
                await connection.subscribe(1, "new/#", QoS.EXACTLY_ONCE)
                await connection.publish(Publish("new/a", b"x", QoS.AT_LEAST_ONCE, packet_id=2))
                await connection.receive(Publish)
                return time.monotonic() - started_s
        await asyncio.sleep(0.05)
    return PATIENCE_S


async def _clean_subscribe(server: PenstockServer) -> float:
    started_s = time.monotonic()
    while time.monotonic() < started_s + PATIENCE_S:
        with suppress(ConnectionError, LoadTestError, TimeoutError, OSError):
            connection, _ = await MqttConnection.open(server.port, Connect("", 4, clean_start=True), 5)
            async with connection:
                await connection.subscribe(1, "clean/+/x", QoS.EXACTLY_ONCE)
                return time.monotonic() - started_s
        await asyncio.sleep(0.05)
    return PATIENCE_S


@contextmanager
def one_server(fault: Fault, folder: Path, seed: int) -> Iterator[tuple[PenstockServer, Trouble]]:
    """A server with a disk that can be made sick; every second one is a store and a gateway."""
    settings = SETTINGS | QUICK | ({} if seed % 4 < 2 else {"store.index_write_buffer_bytes": 65_536})
    flags = {"gateways": "1"} if seed % 2 else {}
    with ExitStack() as ends:
        trouble: FullDisk | FailingCalls
        if fault == Fault.FULL:
            disk = ends.enter_context(small_disk(folder))
            trouble, data = FullDisk(disk), disk / "data"
        else:
            trouble, data = FailingCalls(folder, fault), folder / "data"
        server = PenstockServer(data, folder / "server.log", ServeOptions(flags, settings))
        ends.callback(server.kill)
        server.prefix = trouble.prefix
        server.restart()  # also so that it keeps its port if it starts itself again
        yield server, trouble


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", type=Fault)
    parser.add_argument("runs", type=int)
    parser.add_argument("seconds", type=float, nargs="?", default=6.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-v", "--verbose", action="store_true", help="print the end of each server's log")
    arguments = parser.parse_args()
    is_bad = False
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        with (
            tempfile.TemporaryDirectory() as folder,
            one_server(arguments.fault, Path(folder), seed) as (server, trouble),
        ):
            outcome = asyncio.run(run(server, trouble, seed, arguments.seconds))
            print(f"{arguments.fault} seed {seed}: {outcome}", flush=True)
            for complaint in outcome.complaints:
                print(f"  {complaint}")
            for number in re.findall("Message.*sequence=(\\d+)", "\n".join(outcome.complaints)):
                stands = subprocess.run(
                    ["grep", "-c", "-a", f" {number} ", "-r", str(server.data / "log")], capture_output=True
                )
                print(number, stands.stdout.decode())
            if outcome.complaints or arguments.verbose:
                print(server.log_text()[-6000:])
            is_bad = is_bad or bool(outcome.complaints)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
