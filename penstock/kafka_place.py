"""A topic of a Kafka cluster as a URL names it, and how a client of confluent-kafka connects to it."""

from __future__ import annotations

import logging
import re
from typing import Any, Final, Literal, NamedTuple

KafkaMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
SAY_KAFKA_URL: Final = "say kafka://HOST:9092,HOST:9092/TOPIC"


class KafkaLogin(NamedTuple):
    """Who a client is, and who signed the brokers' certificates: without `ca_file`, an authority of the system."""

    user: str = ""
    password: str = ""
    mechanism: str = "SCRAM-SHA-512"
    ca_file: str = ""


class KafkaPlace(NamedTuple):
    """`topic`: empty if the URL names none. `config`: how a client of confluent-kafka connects; it has the password."""

    servers: str
    topic: str
    config: dict[str, Any]

    @property
    def brokers(self) -> int:
        """How many the URL names."""
        return self.servers.count(",") + 1


def named_place(url: str, login: KafkaLogin, client_id: str, logger: str) -> KafkaPlace:
    """The place that a URL names. `logger`: for what the library has to tell. Raises ValueError, which says why not."""
    scheme, _, rest = url.partition("://")
    servers, _, topic = rest.partition("/")
    if not all(map(_BROKER.fullmatch, servers.split(","))):
        raise ValueError(f"{url!r} names no brokers with their ports")
    if topic and not is_kafka_topic(topic):
        raise ValueError(f"{topic!r} is no topic of Kafka: 1 to 249 letters, digits, ., _ and -")
    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        "client.id": client_id,
        "logger": logging.getLogger(logger),
        "log_level": 3,
        "reconnect.backoff.max.ms": 2_000,
        "topic.metadata.propagation.max.ms": 0,
    }
    protocol = "SSL" if scheme == "kafkas" else "PLAINTEXT"
    if protocol == "SSL" and login.ca_file:
        config["ssl.ca.location"] = login.ca_file
    config["security.protocol"] = protocol
    if login.user:
        config["security.protocol"] = f"SASL_{protocol}"
        config |= {
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.user,
            "sasl.password": login.password,
        }
    return KafkaPlace(servers, topic, config)


def is_kafka_topic(name: str) -> bool:
    return bool(_TOPIC.fullmatch(name)) and name not in (".", "..")
