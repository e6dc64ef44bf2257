"""A real server whose old segments rot while it runs: it tells so, and after a kill it serves all the rest."""

import re
import subprocess
import urllib.request
from pathlib import Path

from lightqueue.message_store import MessageStore
from store.files.segment import segment_paths
from store.files.sums import read_sums
from tests.conftest import ServerFactory
from tests.support.server_process import PenstockServer
from tests.support.store_process import StoreProcess
from tests.support.stores import fill, flip, wait_until
from tests.support.stores import small as small_store

NUMBER = 800
SCRUBBED = {"store.scrub_interval_s": 1, "store.verify_at_start_bytes": 0}


def publish(server: PenstockServer) -> None:
    payloads = [b"%06d %s" % (number, b"x" * 1000) for number in range(NUMBER)]
    run = ["mosquitto_pub", "-p", str(server.port), "-t", "plant/7/temp", "-q", "1", "-l"]
    subprocess.run(run, input=b"\n".join(payloads) + b"\n", check=True, timeout=60)


def page(server: PenstockServer, name: str) -> str:
    url = re.findall(r"^admin (http://\S+)$", server.log_text(), re.MULTILINE)[-1]
    with urllib.request.urlopen(f"{url}/{name}", timeout=20) as answer:
        return str(answer.read().decode())


def metric(server: PenstockServer, name: str) -> int:
    """The sum over its labels."""
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page(server, "metrics"), re.MULTILINE)
    return int(sum(map(float, found)))


def test_rot_is_told_while_it_runs_and_put_aside_by_the_next_start(
    penstock_server: ServerFactory, small: dict[str, object]
) -> None:
    server = penstock_server(flush="sync", settings=small | SCRUBBED, admin="127.0.0.1:0")
    publish(server)
    wait_until(lambda: metric(server, "penstock_scrub_passes_total") > 1)
    assert metric(server, "penstock_scrub_bytes_total") > 262_144
    assert page(server, "healthz") == "ok\n"
    segment = segment_paths(server.data / "log")[0]
    flip(segment, 100_000)
    wait_until(lambda: metric(server, "penstock_scrub_damaged_bytes") > 0)
    damaged = metric(server, "penstock_scrub_damaged_bytes")
    assert re.fullmatch(
        rf"ok; scrubbing found {damaged} bytes damaged: penstock store check \S+ says what to do\n",
        page(server, "healthz"),
    )
    told = next(line for line in server.log_text().splitlines() if "found by scrubbing" in line)
    assert re.search(r"ERROR .*00000000\.log: damaged: log_offset \d+ to \d+ \(\d+ bytes\): checksum mismatch", told)
    assert "penstock store repair" in told
    server.kill()
    server.restart()
    assert metric(server, "penstock_log_lost_bytes") == damaged
    assert len(list((server.data / "quarantine").glob("*.json"))) == 1
    wait_until(lambda: metric(server, "penstock_scrub_passes_total") > 0)
    assert metric(server, "penstock_scrub_damaged_bytes") == 0
    server.kill()


def sums(data: Path) -> dict[int, bytes]:
    found = read_sums(data / "log")
    return {} if found is None else {each.base: each.digest for each in found.entries.values()}


def test_kills_in_the_middle_of_passes_cost_no_sum_and_alarm_nobody(
    penstock_server: ServerFactory, small: dict[str, object]
) -> None:
    settings = small | SCRUBBED | {"store.scrub_bytes_per_s": 400_000}
    server = penstock_server(flush="sync", settings=settings, admin="127.0.0.1:0")
    publish(server)
    known: dict[int, bytes] = {}
    for wanted in (1, 2):
        wait_until(lambda wanted=wanted: len(sums(server.data)) >= wanted)  # type: ignore[misc]
        server.kill()
        found = sums(server.data)
        assert found.items() >= known.items()
        known = found
        server.restart()
    assert page(server, "healthz") == "ok\n"
    assert "changed" not in server.log_text()
    server.kill()


def test_a_store_process_scrubs_too(tmp_path: Path) -> None:
    messages = MessageStore(small_store(tmp_path / "data"))
    fill(messages, 2)
    messages.close()
    flip(segment_paths(tmp_path / "data" / "log")[0], 30_000)
    store = StoreProcess(tmp_path, settings=SCRUBBED)
    try:
        wait_until(lambda: "found by scrubbing" in store.log_text())
        store.terminate()
        store.start()
        assert "no longer readable" in store.log_text()
    finally:
        store.close()
