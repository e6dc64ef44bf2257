"""What the cold tier costs those who live beside it, and how fast MQTT replays come from it.

    python -m tests.bench.beside_tier FOLDER [backfill|replays|rate|cpu] [ROUNDS]

backfill: devices' p99 without and beside a backfill of 1.2 GB of log. replays: the same beside four replays of all
history from the tier (catalogue, row 79). rate: one replay of 400,000 messages from the log, and from the tier.
cpu: the broker's CPU for a message at 20,000/s, without a tier and with one.

`penstock serve` and the devices have the first core, `penstock tier` and what replays has the last one.
"""

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lightqueue.message_store import MessageStore
from loadtest.chaos.part import Part
from loadtest.devices.address import BrokerAddress
from loadtest.devices.run import WorkloadRun, run
from loadtest.workloads.workload import Publishers, Subscribers, Timing, Workload
from penstock.tier.errors import TierError
from penstock.tier.history import TableHistory
from penstock.tier.objects import ObjectFolder
from store.settings import StoreSettings
from tests.bench.tier import telemetry
from tests.support.mqtt_byte_client import connect, subscribe, text
from tests.support.server_process import PenstockServer, ServeOptions
from tests.support.stores import wait_until

MB = 1_000_000
LOG_BYTES, SHORT_LOG_BYTES = 1_200 * MB, 77 * MB
BATCHES, DEVICES, REPLAYS = 20, 10_000, 4
LIVING = Workload(
    "beside the tier",
    publishers=[Publishers(["living/{i}"], count=100, qos=1, rate=1_000)],
    subscribers=[Subscribers(["living/{i}"], count=100, qos=1)],
    timing=Timing(warm_up_s=0.5, duration_s=5),
)
FIXED_RATE = Workload(
    "20,000/s",
    publishers=[Publishers(["living/{i}"], count=100, qos=1, rate=20_000)],
    subscribers=[Subscribers(["living/{i}"], count=100, qos=1)],
    timing=Timing(warm_up_s=2, duration_s=15),
)
FIRST_CORE, LAST_CORE = {0}, {(os.cpu_count() or 1) - 1}
FORCE = {"tier.reads": "force"}
REPLAYED = [b"fleet/#", b"fleet/+/+/telemetry"]
"""What the store has a queue of, and what it scans for."""
REPLAY = "--replay"  # this program, as one that replays
PATIENCE_S = 300


class Tier(Part):
    """`penstock tier` on the last core, which has begun to write."""

    says = "tier"

    def __init__(self, server: PenstockServer, folder: Path, **settings: object) -> None:
        self.table = folder
        with on_last_core():
            url = f"unix://{server.data / 'operator.sock'}"
            command = ["tier", "--store", url, "--url", str(folder)]
            super().__init__(folder.with_suffix(".log"), command, settings, {}, admin=False)
        wait_until(lambda: "writing to" in self.log_text(), PATIENCE_S)


@contextmanager
def on_last_core() -> Iterator[None]:
    """What is started has the last core."""
    os.sched_setaffinity(0, LAST_CORE)
    yield
    os.sched_setaffinity(0, FIRST_CORE)


@contextmanager
def served(folder: Path, **settings: object) -> Iterator[PenstockServer]:
    server = PenstockServer(folder / "data", folder / "server.log", ServeOptions({"flush": "async"}, settings))
    try:
        yield server
    finally:
        server.kill()


def fill(data: Path, size_bytes: int) -> None:
    store = MessageStore(StoreSettings(data=data, flush="async"))
    batches = [telemetry(number, DEVICES) for number in range(BATCHES)]
    number = 0
    while store.end < size_bytes:
        store.append(batches[number % BATCHES])
        store.tick()
        number += 1
    store.close()


def measured(server: PenstockServer, workload: Workload) -> WorkloadRun:
    found = run(workload, BrokerAddress.parse(server.url), [server.process.pid], lambda *_: None)
    assert not found.lost, f"{found.lost} messages are lost"
    return found


def p99_ms(server: PenstockServer) -> float:
    latency = measured(server, LIVING).delivery
    assert latency is not None
    return latency.p99 / 1000


def replayed(port: int, wanted_bytes: int | None, topic_filter: bytes = b"fleet/#") -> tuple[int, float]:
    """Bytes of a replay, and seconds: until nothing came for a second, or so many came."""
    with socket.create_connection(("127.0.0.1", port)) as device:
        device.sendall(connect(properties=b"\x21\xff\xff"))
        device.settimeout(PATIENCE_S)
        device.recv(1000)
        began_s = ended_s = time.monotonic()
        device.sendall(subscribe(topic_filter, properties=b"\x26" + text(b"penstock-from") + text(b"earliest")))
        came = 0
        with suppress(TimeoutError):
            while came != wanted_bytes:
                data = device.recv(1 << 20)
                assert data, "the broker hung up"
                if came:
                    device.settimeout(1 if wanted_bytes is None else PATIENCE_S)
                came += len(data)
                ended_s = time.monotonic()
        return came, ended_s - began_s


def told(what: str, without: Sequence[float], beside: Sequence[float], unit: str) -> None:
    medians = statistics.median(without), statistics.median(beside)
    print(
        f"{what}, medians of {len(beside)}: {medians[0]:.3g} and {medians[1]:.3g} {unit}, {medians[1] / medians[0]:.2f}"
    )


def backfill(folder: Path, rounds: int) -> None:
    fill(folder / "data", LOG_BYTES)
    without, beside = [], []
    with served(folder) as server:
        for number in range(rounds):
            without.append(p99_ms(server))
            tier = Tier(server, folder / f"fleet-{number}")
            beside.append(p99_ms(server))
            tier.kill()
            shutil.rmtree(tier.table)
    told("p99 without and beside a backfill", without, beside, "ms")


def replays(folder: Path, rounds: int) -> None:
    fill(folder / "data", LOG_BYTES)
    without, beside = [], []
    with served(folder, **FORCE) as server:
        tier = Tier(server, folder / "fleet")
        wait_until(lambda: written(tier) >= LOG_BYTES, PATIENCE_S)
        for _ in range(rounds):
            without.append(p99_ms(server))
            with on_last_core():
                command = [sys.executable, "-m", "tests.bench.beside_tier", REPLAY, str(server.port)]
                clients = [subprocess.Popen(command) for _ in range(REPLAYS)]
            beside.append(p99_ms(server))
            assert all(client.poll() is None for client in clients), "a replay ended too early"
            for client in clients:
                client.kill()
                client.wait()
        tier.kill()
    told(f"p99 without and beside {REPLAYS} replays from the tier", without, beside, "ms")


def rate(folder: Path, rounds: int) -> None:
    fill(folder / "data", SHORT_LOG_BYTES)
    with served(folder) as server:
        tier = Tier(server, folder / "fleet")
        wait_until(lambda: written(tier) >= SHORT_LOG_BYTES, PATIENCE_S)
        tier.kill()
        with on_last_core():
            wanted, _ = replayed(server.port, None)
            from_log = {name: [replayed(server.port, wanted, name)[1] for _ in range(rounds)] for name in REPLAYED}
    first: dict[bytes, list[float]] = {name: [] for name in REPLAYED}
    again: dict[bytes, list[float]] = {name: [] for name in REPLAYED}
    with served(folder, **FORCE) as server:
        for name in REPLAYED * rounds:
            tier = Tier(server, folder / "fleet")
            with on_last_core():
                first[name].append(replayed(server.port, wanted, name)[1])
                again[name].append(replayed(server.port, wanted, name)[1])
            tier.kill()
    for name in REPLAYED:
        what = f"{name.decode()}: {wanted / MB:.0f} MB from the log and from a tier that"
        told(f"{what} begins", from_log[name], first[name], "s")
        told(f"{what} has read it", from_log[name], again[name], "s")


def cpu(folder: Path, rounds: int) -> None:
    without: list[float] = []
    beside: list[float] = []
    for number in range(rounds):
        for has_tier, found in ((False, without), (True, beside)):
            place = folder / f"{number}-{has_tier}"
            place.mkdir()
            with served(place) as server:
                tier = Tier(server, place / "fleet", **{"tier.commit_s": 5}) if has_tier else None
                took = measured(server, FIXED_RATE)
                assert took.broker_cores is not None
                found.append(took.broker_cores / took.delivered_per_s * 1e9)
                if tier is not None:
                    tier.kill()
            shutil.rmtree(place)
    told("the broker's CPU for a message without and with a tier", without, beside, "ns")


def written(tier: Tier) -> int:
    """log_offset up to which the table has the log."""
    history = TableHistory(ObjectFolder(str(tier.table)), MB)
    with suppress(TierError):
        history.refresh()
    return history.end


ROWS = {"backfill": backfill, "replays": replays, "rate": rate, "cpu": cpu}


def main(folder: Path, row: str, rounds: int) -> None:
    os.sched_setaffinity(0, FIRST_CORE)
    folder.mkdir(parents=True, exist_ok=True)
    ROWS[row](folder, rounds)


if __name__ == "__main__":
    if sys.argv[1] == REPLAY:
        replayed(int(sys.argv[2]), None)
    else:
        main(Path(sys.argv[1]).absolute(), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 5)
