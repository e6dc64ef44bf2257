"""The topic of the replicated log on real brokers: what the store takes, what it refuses, and how it is made."""

import re
import uuid
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app_for
from penstock.cluster.errors import KafkaUnreachable, TopicUnfit
from penstock.cluster.topic import TopicAdmin, check
from penstock.kafka_place import KafkaLogin, KafkaPlace, named_place
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_cluster import kafka_cluster as kafka_cluster


def place_of(cluster: KafkaCluster, topic: str) -> KafkaPlace:
    return named_place(cluster.url(topic), KafkaLogin(), "test", "tests.kafka")


def fault(cluster: KafkaCluster, accepts_two: bool = False, **made: Any) -> str:
    """What is said of a topic that is made so; empty: it is taken."""
    topic = f"log-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, **made)
    try:
        check(TopicAdmin(place_of(cluster, topic)).describe(), topic, accepts_two)
    except TopicUnfit as error:
        return str(error)
    return ""


def test_unfit_topic_is_refused_with_the_setting(kafka_cluster: KafkaCluster) -> None:
    faults = {
        "store.replicated_log: topic .* has 2 partitions": fault(kafka_cluster, partitions=2),
        "store.replicated_log: topic .* a replication factor of 1": fault(kafka_cluster, replicas=1),
        "store.accept_two_replicas: topic .* a replication factor of 2": fault(kafka_cluster, replicas=2),
        "store.replicated_log: topic .* has min.insync.replicas=1": fault(kafka_cluster, min__insync__replicas=1),
        "has retention.ms=1000; set retention.ms=-1": fault(kafka_cluster, retention__ms=1000),
        "has retention.bytes=1000; set retention.bytes=-1": fault(kafka_cluster, retention__bytes=1000),
        "has cleanup.policy=compact": fault(kafka_cluster, cleanup__policy="compact"),
        "has unclean.leader.election.enable=true": fault(kafka_cluster, unclean__leader__election__enable="true"),
    }
    for wanted, said in faults.items():
        assert re.search(wanted, said), (wanted, said)
        assert "\n" not in said
    assert fault(kafka_cluster) == ""
    assert fault(kafka_cluster, accepts_two=True, replicas=2, min__insync__replicas=1) == ""


def test_create_makes_one_that_is_taken(kafka_cluster: KafkaCluster) -> None:
    topic = f"log-{uuid.uuid4().hex[:8]}"
    asked = ["cluster", "create", "--replicated-log", kafka_cluster.url(topic)]
    done = CliRunner().invoke(app_for(asked), asked)
    assert done.exit_code == 0, done.output
    found = check(TopicAdmin(place_of(kafka_cluster, topic)).describe(), topic, accepts_two=False)
    assert found.replicas == 3
    assert found.config["min.insync.replicas"] == "2"
    assert found.record_bytes >= 1_000_000
    again = CliRunner().invoke(app_for(asked), asked)
    assert "is there already" in str(again.exception)
    two = [*asked, "--replicas", "2"]
    assert "store.accept_two_replicas" in str(CliRunner().invoke(app_for(two), two).exception)


def test_missing_topic_or_broker_is_reported(kafka_cluster: KafkaCluster) -> None:
    with pytest.raises(
        TopicUnfit, match=r"store\.replicated_log: topic nothing of Kafka is not there; `penstock cluster"
    ):
        check(TopicAdmin(place_of(kafka_cluster, "nothing")).describe(), "nothing", accepts_two=False)
    nobody = named_place("kafka://127.0.0.1:1/log", KafkaLogin(), "test", "tests.kafka")
    with pytest.raises(KafkaUnreachable, match=r"store\.replicated_log: topic log of Kafka: "):
        TopicAdmin(nobody).describe()
