"""A Kafka cluster as a flow names it: its URL and the flow's `kafka` options, as confluent-kafka wants them."""

from __future__ import annotations

import logging
import re
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError
from penstock.flows.trust import trusted

_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SAY: Final = "say kafka://HOST:9092,HOST:9092/TOPIC"


class KafkaPlace(NamedTuple):
    """`topic`: empty if the URL names none. `config`: how a client of confluent-kafka connects; it has the password."""

    servers: str
    topic: str
    config: dict[str, Any]


def kafka_place(flow: Flow, field: str, url: str) -> KafkaPlace:
    """Raises FlowError. `field`: where the URL stands, for errors."""
    scheme, _, rest = url.partition("://")
    servers, _, topic = rest.partition("/")
    brokers = servers.split(",")
    if not all(map(_BROKER.fullmatch, brokers)):
        raise FlowError(flow.name, field, f"{url!r} names no brokers with their ports", _SAY)
    if topic and not is_kafka_topic(topic):
        raise FlowError(flow.name, field, f"{topic!r} is no topic of Kafka: 1 to 249 letters, digits, ., _ and -", _SAY)
    said = flow.said.kafka
    if bool(said.user) != bool(flow.kafka_password):
        raise FlowError(flow.name, "kafka", "a user comes with a password", "say both, or neither")
    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        "client.id": f"penstock-flow-{flow.name}",
        "logger": logging.getLogger("penstock.flows.kafka"),
        "log_level": 3,
        "reconnect.backoff.max.ms": 2_000,
        "topic.metadata.propagation.max.ms": 0,
    }
    protocol = "SSL" if scheme == "kafkas" else "PLAINTEXT"
    if protocol == "SSL" and flow.said.ca_file:
        trusted(flow)
        config["ssl.ca.location"] = flow.said.ca_file
    config["security.protocol"] = protocol
    if said.user:
        config["security.protocol"] = f"SASL_{protocol}"
        config |= {"sasl.mechanism": said.mechanism, "sasl.username": said.user, "sasl.password": flow.kafka_password}
    return KafkaPlace(servers, topic, config)


def refusal(error: KafkaError) -> str:
    """What of the flow is to be corrected, where brokers do not let it in or it does not trust them; empty: neither."""
    match error.code():
        case KafkaError._AUTHENTICATION | KafkaError.SASL_AUTHENTICATION_FAILED:
            return "kafka.password: correct it, or kafka.user or kafka.mechanism"
        case KafkaError._SSL:
            return "ca_file: give the authority that signed the brokers' certificates, and the names that these are for"
    return ""


def is_kafka_topic(name: str) -> bool:
    return bool(_TOPIC.fullmatch(name)) and name not in (".", "..")
