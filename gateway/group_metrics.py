"""What is counted of consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.figures import Figure, Value

if TYPE_CHECKING:
    from lightqueue.groups import GroupQueue
    from lightqueue.message_store import MessageStore

MOST_GROUPS = 100  # that have a label of their own
OTHER_GROUPS = "other"


def _by_group(read: Callable[[GroupQueue], float]) -> Callable[[MessageStore], Value]:
    """A number of each consumer group; of those beyond MOST_GROUPS, which were made last, the sum."""

    def read_all_groups(store: MessageStore) -> Value:
        found: dict[str, float] = {}
        for number, each in enumerate(store.groups):
            label = ":".join(each.state.key) if number < MOST_GROUPS else OTHER_GROUPS
            found[label] = found.get(label, 0) + read(each)
        return found

    return read_all_groups


GROUPS: tuple[Figure[MessageStore], ...] = (
    Figure(
        "penstock_group_lag",
        "gauge",
        "Messages of a consumer group (NAME:TOPIC_FILTER) that are not done with.",
        _by_group(lambda found: found.lag),
        "group",
    ),
    Figure(
        "penstock_group_inflight_messages",
        "gauge",
        "Messages that consumers of the group have, and have not acknowledged.",
        _by_group(lambda found: found.group.in_flight),
        "group",
    ),
    Figure(
        "penstock_group_retries",
        "gauge",
        "Messages that wait to be handed out again.",
        _by_group(lambda found: found.group.waiting),
        "group",
    ),
    Figure(
        "penstock_group_dead_letters_total",
        "counter",
        "Messages that became dead letters since the group was made.",
        _by_group(lambda found: found.state.dead_letters),
        "group",
    ),
    Figure(
        "penstock_group_consumers",
        "gauge",
        "Consumers of the group.",
        _by_group(lambda found: len(found.group.consumers)),
        "group",
    ),
)
