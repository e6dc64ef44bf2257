"""The life of a gateway: its stages."""

import pytest

from gateway.broker import TRANSITIONS, BrokerStage
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench


def test_each_stage_has_its_changes() -> None:
    assert set(TRANSITIONS) == set(BrokerStage)
    assert all(stage in BrokerStage and why for changes in TRANSITIONS.values() for stage, why in changes.items())


def test_gateway_is_ready_only_while_it_listens(bench: Bench) -> None:
    broker = bench.broker
    assert (broker.stage, broker.unready()) == (BrokerStage.STARTING, "not listening yet")
    broker.listening()
    assert (broker.stage, broker.unready()) == (BrokerStage.LISTENING, "")
    broker.drain(ReasonCode.SERVER_SHUTTING_DOWN)
    assert (broker.stage, broker.unready()) == (BrokerStage.DRAINING, "stopping")
    with pytest.raises(AssertionError):
        broker.listening()
