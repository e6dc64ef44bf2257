"""Flows to and from a Kafka broker that wants TLS and a password."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from penstock.sync import Client
from tests.support.flows_fixtures import client as client
from tests.support.flows_fixtures import store as store
from tests.support.flows_part import FlowsPart
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_flows import produce, stored
from tests.support.kafka_secured import PASSWORD, USER, KafkaSecured, add_scram_user
from tests.support.kafka_topics import values
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 120


def wait_until(condition: Callable[[], bool]) -> None:
    until(condition, PATIENCE_S)


def secured_of(kafka: KafkaBroker) -> KafkaSecured:
    assert kafka.node.secured is not None
    return kafka.node.secured


def flows(secured: KafkaSecured, topic: str, ca_file: Path, password: str = "KAFKA_PASSWORD", number: int = 0) -> str:
    """One into Kafka, exactly once, and one back."""
    place = f"kafkas://{secured.url}/{topic}"
    kafka = f'user = "{USER}", password = {{ env = "{password}" }}'
    return f"""
        [flow.out{number}]
        from = "plant/#"
        to = "{place}"
        format = "raw"
        timeout_s = 2
        ca_file = "{ca_file}"
        kafka = {{ exactly_once = true, id = "{topic}.done", mechanism = "PLAIN", {kafka} }}

        [flow.in{number}]
        from = "{place}"
        to = "penstock:"
        map.topic = "back/{{partition}}"
        ca_file = "{ca_file}"
        kafka = {{ {kafka} }}
    """


def test_messages_go_to_kafka_and_back_and_what_is_wrong_is_told_in_a_line(
    kafka: KafkaBroker, store: StoreProcess, client: Client, tmp_path: Path
) -> None:
    secured, topic = secured_of(kafka), f"secured-{uuid.uuid4().hex}"
    add_scram_user(kafka.admin())
    kafka.create_topic(topic)
    produce(kafka, topic, [b"0"])
    client.publish("plant/1", b"1")
    texts = (
        flows(secured, topic, secured.authority.certificate),
        flows(secured, topic, secured.authority.certificate, "WRONG_PASSWORD", 1),
        flows(secured, topic, secured.stranger.certificate, "KAFKA_PASSWORD", 2),
    )
    passwords = {"KAFKA_PASSWORD": PASSWORD, "WRONG_PASSWORD": "another-s3cret"}
    part = FlowsPart(store, tmp_path, "".join(texts), passwords)
    try:
        wait_until(lambda: stored(client, "back/#").get("back/0") == [b"0", b"1"])
        assert values(kafka.url, topic) == [b"0", b"1"]
        for flow, remedy in (
            *((f"{kind}1", "kafka.password: correct it") for kind in ("in", "out")),
            *((f"{kind}2", "ca_file: give the authority") for kind in ("in", "out")),
        ):
            wait_until(lambda flow=flow: lines_of(part, flow) != [])  # type: ignore[misc]
            (line,) = lines_of(part, flow)
            assert remedy in line
        assert not any(password in part.log_text() for password in passwords.values())
    finally:
        part.kill()


def lines_of(part: FlowsPart, flow: str) -> list[str]:
    return [line for line in part.log_text().splitlines() if f"flow {flow}: Kafka" in line]
