"""The settings of a cluster beside store.replicated_log: how Kafka knows this store, and how users reach it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.kafka_place import KafkaMechanism


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    address: str = field(
        default="",
        metadata={
            "doc": "Where gateways and clients reach this store, as the other stores tell them. Empty: the address "
            "that it listens on.",
            "shape": "tcp://HOST:PORT or tls://HOST:PORT",
            "pattern": r"|(tcp|tls)://[^\s/@]+:(?P<port>\d{1,5})",
        },
    )
    name: str = field(
        default="",
        metadata={
            "doc": "Name of this store in its cluster. Empty: the name of the machine.",
            "shape": "1 to 64 letters, digits, ., _ and -",
            "pattern": r"[A-Za-z0-9._-]{0,64}",
        },
    )
    stores: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "Names of all stores of the cluster. What all of them have on their disks is deleted in Kafka; for "
            "a store that is away, Kafka keeps what it lacks. Empty: nothing is deleted.",
            "shape": "1 to 64 letters, digits, ., _ and -",
            "pattern": r"[A-Za-z0-9._-]{1,64}",
        },
    )
    failover_s: int = field(
        default=3,
        metadata={
            "doc": "A standby takes over when it has heard nothing of the leader for so long. The same in all stores.",
            "at_least": 2,
            "at_most": 300,
        },
    )
    kafka_user: str = field(
        default="", metadata={"doc": "User that the store is for Kafka (SASL). Empty: Kafka asks for none."}
    )
    kafka_password_file: Path | None = field(default=None, metadata={"doc": "File with that user's password."})
    kafka_mechanism: KafkaMechanism = field(
        default="SCRAM-SHA-512", metadata={"doc": "How that user logs in to Kafka."}
    )
    kafka_ca_file: Path | None = field(
        default=None,
        metadata={"doc": "PEM file of the authorities that sign the brokers' certificates; unset: the system's."},
    )
