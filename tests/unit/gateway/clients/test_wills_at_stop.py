"""Wills when a gateway stops: they wait for the clients, which are told to go elsewhere or find it started again."""

from __future__ import annotations

import pytest

from gateway.mqtt.packets import Disconnect, QoS, Will
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from store.records.records import RecordType
from tests.support.mqtt_bench import Bench, Client, WallClock
from tests.unit.conftest import StartBench

GRACE_S = 60
WILL = Will("will/a", b"gone", QoS.AT_LEAST_ONCE)
VERSIONS = pytest.mark.parametrize("version", [4, 5])


def stop(bench: Bench) -> None:
    """As SIGTERM does."""
    bench.broker.drain(ReasonCode.SERVER_SHUTTING_DOWN)
    while not bench.broker.drained():
        bench.pass_time(1)
    bench.broker.end_draining()
    bench.run()


def sent(bench: Bench, seconds: int = 0) -> list[bytes]:
    """What is published by then."""
    bench.pass_time(seconds)
    bench.store.tick()
    bench.run()
    return [record.payload for record in bench.stored() if record.type == RecordType.MESSAGE]


def back(bench: Bench, version: int, **fields: object) -> Client:
    bench.restart()
    return bench.connect("a", version, **fields)


@VERSIONS
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("returns_clean", [True, False])
def test_a_client_that_comes_back_has_its_will_dropped(
    bench: Bench, version: int, is_clean: bool, returns_clean: bool
) -> None:
    (bench.connect if is_clean else bench.durable)("a", version, will=WILL)
    stop(bench)
    assert sent(bench) == []
    client = back(bench, version, clean_start=returns_clean)
    assert sent(bench, 2 * GRACE_S) == []
    client.lose()


@VERSIONS
@pytest.mark.parametrize("is_clean", [True, False])
def test_the_will_of_one_that_does_not_is_sent(bench: Bench, version: int, is_clean: bool) -> None:
    (bench.connect if is_clean else bench.durable)("a", version, will=WILL)
    stop(bench)
    bench.restart()
    assert sent(bench, GRACE_S - 5) == []
    assert sent(bench, 10) == [b"gone"]
    assert sent(bench, GRACE_S) == [b"gone"]
    assert (bench.store.sessions.get("a") is None) == is_clean


def test_while_the_server_is_away_no_time_passes(bench: Bench, clock: WallClock) -> None:
    """Its clients could not come back meanwhile."""
    bench.connect("a", will=WILL)
    stop(bench)
    clock.ahead_s += 10 * GRACE_S
    bench.restart()
    assert sent(bench, GRACE_S - 5) == []
    bench.connect("a", will=WILL)
    assert sent(bench, GRACE_S) == []


def test_a_session_that_is_not_kept_is_not_resumed(bench: Bench) -> None:
    client = bench.connect("a", will=WILL)
    client.subscribe("t", qos=1)
    stop(bench)
    bench.restart()
    answer = bench.client().connect("a", clean_start=False)
    assert not answer.session_present


def test_a_longer_delay_of_its_own_holds(bench: Bench) -> None:
    will = Will("will/a", b"gone", properties=Properties(will_delay_interval=3 * GRACE_S))
    bench.durable("a", will=will)
    stop(bench)
    bench.restart()
    assert sent(bench, 2 * GRACE_S) == []
    assert sent(bench, 2 * GRACE_S) == [b"gone"]


def test_a_session_that_would_expire_before_waits_as_well(bench: Bench) -> None:
    bench.connect("a", session_expiry_interval=5, will=WILL)
    stop(bench)
    bench.restart()
    assert sent(bench, GRACE_S - 5) == []
    assert sent(bench, 10) == [b"gone"]
    assert bench.store.sessions.get("a") is None


@VERSIONS
def test_without_a_delay_they_are_sent_at_once(start_bench: StartBench, version: int) -> None:
    bench = start_bench(stop_will_delay_s=0)
    bench.connect("a", version, will=WILL)
    stop(bench)
    assert sent(bench) == [b"gone"]


def test_other_ends_are_as_ever(bench: Bench) -> None:
    bench.connect("a", will=WILL).lose()
    assert sent(bench) == [b"gone"]
    bench.connect("b", will=WILL).send(Disconnect())
    stop(bench)
    assert sent(bench, 2 * GRACE_S) == [b"gone"]
