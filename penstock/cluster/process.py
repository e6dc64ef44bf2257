"""`penstock store` with store.replicated_log: a store that leads its cluster, or follows."""

from __future__ import annotations

from penstock.cluster.member import ClusterMember
from penstock.cluster.place import replicated_place
from penstock.cluster.topic import TopicAdmin, check
from penstock.config.settings import Settings
from penstock.servers import store_process


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    place = replicated_place(settings)
    topic = check(TopicAdmin(place).describe(), place.topic, settings.store.accept_two_replicas)
    return store_process.serve(settings, ClusterMember(settings, place, topic))
