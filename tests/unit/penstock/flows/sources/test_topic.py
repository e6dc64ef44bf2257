"""Flows from Kafka as a file has them: what is wrong is one line that names flow, field and remedy."""

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.flows.definition import read_flows
from penstock.flows.process import runner_of
from penstock.flows.sources.kafka import KafkaRunner
from penstock.sdk.client import Client

FROM = 'from = "kafka://h:9092,[::1]:9093/orders"\n'
TOPIC = 'map = { topic = "in/{key}" }\n'
GOOD = FROM + 'to = "penstock:"\n' + TOPIC


def runner(tmp_path: Path, text: str) -> object:
    (tmp_path / "flows.toml").write_text(f"[flow.orders]\n{text}")
    (flow,) = read_flows(tmp_path / "flows.toml")
    return runner_of(flow, Client("unix:///nowhere"), "")


@pytest.mark.parametrize("more", ["", 'start = "-1h"', 'start = "now"', 'start = "2026-01-01T00:00:00Z"'])
def test_a_flow_from_kafka(tmp_path: Path, more: str) -> None:
    assert isinstance(runner(tmp_path, GOOD + more), KafkaRunner)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FROM + 'to = "penstock:"', "flow.orders.map.topic: the messages need a topic; say one"),
        (FROM + 'to = "https://h"\n' + TOPIC, "flow.orders.to: what comes from Kafka goes to a store"),
        (FROM + 'to = "penstock://h/x"\n' + TOPIC, "flow.orders.to: penstock://h/x: not the address"),
        (GOOD.replace("/orders", ""), "flow.orders.from: it names no topic"),
        (GOOD.replace(":9092", ""), "flow.orders.from: "),
        (GOOD + 'where = "levels[0] == key"', "flow.orders.where: character 1: undeclared reference to 'levels'"),
        (GOOD + "ordered = true", "flow.orders.ordered: it means nothing to a flow from Kafka; leave it out"),
        (GOOD + 'start = "@7"', "flow.orders.start: '@7' is no time"),
        (GOOD + 'start = "noon"', "flow.orders.start: 'noon' is no place"),
    ],
)
def test_errors_of_flows_from_kafka_name_flow_and_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        runner(tmp_path, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
