"""Errors of a cluster, one line each: the setting, what is wrong, and the remedy."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import PenstockError, UsageError


class TopicUnfit(UsageError):
    """The topic would lose what was acknowledged, or is none for a log."""

    def __init__(self, setting: str, topic: str, reason: str, remedy: str) -> None:
        super().__init__(f"{setting}: topic {topic} of Kafka {reason}; {remedy}")


class KafkaUnreachable(PenstockError):
    """Kafka did not answer, or refused what the store needs."""

    def __init__(self, topic: str, reason: str, remedy: str = "see whether its brokers are there") -> None:
        super().__init__(f"store.replicated_log: topic {topic} of Kafka: {reason}; {remedy}")


class PartitionLost(PenstockError):
    """The partition is not the one that the store has followed, or does not have what the store lacks."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"store.replicated_log: topic {topic} of Kafka: {reason}; this store stops, and its log stays as it is: "
            "`penstock cluster recover` says what it has, and copies the log of the store that leads"
        )


class NoStoreToCopy(PenstockError):
    """There is no other store from which the log could be copied."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"store.replicated_log: topic {topic} of Kafka does not have the beginning of the log, and {reason}: start "
            "a store that has it, or bring its data folder back"
        )


class NotRecovered(PenstockError):
    """A store would lose what no other one may have."""

    exit_code = 3

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"{folder}: {reason}; nothing was changed. If it is the newest log that is left, begin a cluster with it: "
            f"`penstock cluster create --from {folder}` with the name of a new topic. If you can do without, say "
            "--give-up-own: it is kept in a folder beside"
        )
