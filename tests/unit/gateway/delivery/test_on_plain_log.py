"""Delivery from a second log: gateways, light queues and recovery stand on store/log/api.py and nothing behind it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mqtt_bench import Bench, WallClock
from tests.support.plain_log import PlainLog, open_plain_log
from tests.support.stores import crash_copy, run_upkeep


@pytest.fixture
def plain(tmp_path: Path, clock: WallClock, apart: bool) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data", clock, segment_bytes=64 << 10, apart=apart, opens=open_plain_log)
    yield bench
    bench.close()


def test_messages_of_each_qos_come_as_from_the_commit_log(plain: Bench) -> None:
    client = plain.connect("a")
    for qos in (0, 1, 2):
        client.subscribe(f"q{qos}/#", qos=qos)
    client.subscribe("$share/g/s/+", qos=1)
    publisher = plain.connect("b")
    sent = []
    for number in range(300):
        payload = b"%d " % number + bytes(2 * number)
        publisher.publish(f"q{number % 3}/t", payload, qos=number % 3)
        publisher.take()
        sent += [payload]
    publisher.publish("s/1", b"shared", qos=1)
    assert sorted(client.take()) == sorted([*sent, b"shared"])
    assert isinstance(plain.store.log, PlainLog)
    assert plain.store.log.file_count > 1


def test_a_session_and_retained_messages_outlive_a_kill(plain: Bench, tmp_path: Path) -> None:
    plain.connect("a", clean_start=False, session_expiry_interval=3_600).subscribe("t/+", qos=1)
    publisher = plain.connect("b")
    for number in range(50):
        publisher.publish(f"t/{number % 3}", b"%d" % number, qos=1, retain=number >= 47)
    plain.run()
    plain.move(crash_copy(tmp_path / "data", tmp_path / "killed"))
    again = plain.connect("a", clean_start=False, session_expiry_interval=3_600)
    assert sorted(again.take(), key=int) == [b"%d" % number for number in range(50)]
    fresh = plain.connect("c")
    fresh.subscribe("t/#")
    assert sorted(fresh.take()) == [b"47", b"48", b"49"]
    replaying = plain.connect("d")
    replaying.subscribe("t/+", qos=1, user_properties=(("penstock-from", "earliest"),))
    assert sorted(replaying.take(), key=int)[:5] == [b"0", b"1", b"2", b"3", b"4"]


def test_the_projection_is_built_again_from_the_plain_log_alone(plain: Bench, tmp_path: Path) -> None:
    plain.connect("a", clean_start=False, session_expiry_interval=3_600).subscribe("t/+", qos=1)
    publisher = plain.connect("b")
    for number in range(50):
        publisher.publish("t/x", b"%d" % number, qos=1)
    plain.run()
    killed = crash_copy(tmp_path / "data", tmp_path / "killed")
    shutil.rmtree(killed / "index")
    plain.move(killed)
    again = plain.connect("a", clean_start=False, session_expiry_interval=3_600)
    assert again.take() == [b"%d" % number for number in range(50)]


def test_retention_drops_its_parts_and_carries_what_is_retained(plain: Bench) -> None:
    publisher = plain.connect("b")
    publisher.publish("kept/1", b"retained", qos=1, retain=True)
    for _ in range(40):
        publisher.publish("t/x", bytes(8_000), qos=1)
    plain.run()
    log = plain.store.log
    boundary = log.parts()[2].end
    object.__setattr__(plain.store.settings, "retention_bytes", log.end - boundary)
    run_upkeep(plain.store)
    assert log.first == log.base >= boundary
    fresh = plain.connect("c")
    fresh.subscribe("kept/#")
    assert fresh.take() == [b"retained"]
