"""Why brokers of Kafka do not let a client in, or why it does not trust them: nothing that waiting mends."""

from __future__ import annotations

from typing import Literal

from confluent_kafka import KafkaError

KafkaRefusal = Literal["login", "certificate"]
"""What is to be corrected."""


def refusal_of(error: KafkaError) -> KafkaRefusal | None:
    match error.code():
        case KafkaError._AUTHENTICATION | KafkaError.SASL_AUTHENTICATION_FAILED:
            return "login"
        case KafkaError._SSL:
            return "certificate"
    return None
