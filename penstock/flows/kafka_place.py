"""A Kafka cluster as a flow names it: its URL and the flow's `kafka` options."""

from __future__ import annotations

from confluent_kafka import KafkaError

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError
from penstock.flows.trust import trusted
from penstock.kafka_place import SAY_KAFKA_URL, KafkaLogin, KafkaPlace, named_place
from penstock.kafka_refusal import refusal_of


def kafka_place(flow: Flow, field: str, url: str) -> KafkaPlace:
    """Raises FlowError. `field`: where the URL stands, for errors."""
    said = flow.said.kafka
    if bool(said.user) != bool(flow.kafka_password):
        raise FlowError(flow.name, "kafka", "a user comes with a password", "say both, or neither")
    if url.startswith("kafkas:") and flow.said.ca_file:
        trusted(flow)
    login = KafkaLogin(said.user, flow.kafka_password, said.mechanism, flow.said.ca_file)
    try:
        return named_place(url, login, f"penstock-flow-{flow.name}", "penstock.flows.kafka")
    except ValueError as error:
        raise FlowError(flow.name, field, str(error), SAY_KAFKA_URL) from None


def refusal(error: KafkaError) -> str:
    """What of the flow is to be corrected, where brokers do not let it in or it does not trust them; empty: neither."""
    match refusal_of(error):
        case "login":
            return "kafka.password: correct it, or kafka.user or kafka.mechanism"
        case "certificate":
            return "ca_file: give the authority that signed the brokers' certificates, and the names that these are for"
    return ""
