"""The worst that one client may send: another one is answered meanwhile (tests/bench/worst.py has all of it)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import worst_frames, worst_others
from tests.bench.turn_clock import TurnClocks, clocked
from tests.bench.worst import LAYERED, run
from tests.conftest import ServerFactory
from tests.support.certificates import authority, vouched_for

LIMIT_MS = 100  # all of these took some 200 ms to 20 s; they take less than 5 on a quiet machine
QUICK = (
    "CONNECT: properties, too many",
    "PUBLISH: properties, too many",
    "PUBREL: unknown, tiny",
    "SUBSCRIBE: filters, too many",
    "SUBSCRIBE: filters, as many as a session may have",
    "SUBACK from a client",
    "PUBLISH: topics, each another",
    "SUBSCRIBE: overlapping, and 2,000 messages",
    "PUBLISH: retained, one topic",
)
QUICK_FRAMES = ("Ping: 10,000 in one piece", "Publish: 10,000 topics", "Claim: 2,000 in one piece")


@pytest.fixture
def clocks(tmp_path: Path) -> Iterator[TurnClocks]:
    with clocked(tmp_path / "clocks") as found:
        yield found


def test_worst_packets_do_not_delay_other_clients(clocks: TurnClocks, penstock_server: ServerFactory) -> None:
    server = penstock_server(flush="async")
    took = {name: run(server, clocks, name).longest_turn for name in QUICK}
    assert 0 < max(took.values()) < LIMIT_MS, took
    assert "Traceback" not in server.log_text()


def test_frames_and_records_of_one_byte(clocks: TurnClocks, penstock_server: ServerFactory, tmp_path: Path) -> None:
    """One read has tens of thousands of them."""
    made = vouched_for(tmp_path, "server", "DNS:localhost", authority(tmp_path, "authority"))
    settings = {
        "gateway.listen": "mqtt://127.0.0.1:0,ws://127.0.0.1:0,mqtts://127.0.0.1:0",
        "gateway.tls_certificate": made.certificate,
        "gateway.tls_key": made.key,
    }
    server = penstock_server(flush="async", settings=settings).one_gateway()
    took = {name: run(server, clocks, name).longest_turn for name in LAYERED}
    assert 0 < max(took.values()) < LIMIT_MS, took
    assert "Traceback" not in server.log_text()
    assert "protocol error" not in server.log_text()


def test_frames_to_a_store(tmp_path: Path) -> None:
    took = dict(worst_frames.results(list(QUICK_FRAMES), tmp_path))
    assert 0 < max(took.values()) < LIMIT_MS, took


def test_worst_packets_on_a_server_of_their_own() -> None:
    took = dict(worst_others.results(list(worst_others.OTHERS), 1))
    assert 0 < max(took.values()) < LIMIT_MS, took
