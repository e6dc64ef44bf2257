"""Errors of a cluster, one line each: the setting, what is wrong, and the remedy."""

from __future__ import annotations

from penstock.errors import PenstockError, UsageError


class TopicUnfit(UsageError):
    """The topic would lose what was acknowledged, or is none for a log."""

    def __init__(self, setting: str, topic: str, reason: str, remedy: str) -> None:
        super().__init__(f"{setting}: topic {topic} of Kafka {reason}; {remedy}")


class KafkaUnreachable(PenstockError):
    """Kafka did not answer, or refused what the store needs."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"store.replicated_log: topic {topic} of Kafka: {reason}; see whether its brokers are there")


class PartitionLost(PenstockError):
    """The partition is not the one that the store has followed, or does not have what the store lacks."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"store.replicated_log: topic {topic} of Kafka: {reason}; this store stops, and its log stays as it "
            'is: see "What to do where Kafka lost the log" in docs/cluster.md'
        )


class NoStoreToCopy(PenstockError):
    """There is no other store from which the log could be copied."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"store.replicated_log: topic {topic} of Kafka does not have the beginning of the log, and {reason}: start "
            "a store that has it, or bring its data folder back"
        )
