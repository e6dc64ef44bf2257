"""Metrics of consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from store.figures import Figure, Sections, Value

if TYPE_CHECKING:
    from lightqueue.groups.group_queue import GroupQueue
    from store.state.consumer_work import ConsumerWork


GROUPS_AT_ONCE = 64  # some 0.4 ms of the loop


class GroupPage(NamedTuple):
    """Some of a store's consumer groups."""

    groups: list[GroupQueue]


def group_pages(all_groups: Iterable[GroupQueue]) -> Iterator[GroupPage]:
    """All consumer groups: lightqueue.groups.groups.MOST_GROUPS at most, so each has a label of its own."""
    groups = list(all_groups)
    for at in range(0, max(len(groups), 1), GROUPS_AT_ONCE):
        yield GroupPage(groups[at : at + GROUPS_AT_ONCE])


def _by_group(read: Callable[[GroupQueue], float]) -> Callable[[GroupPage], Value]:
    return lambda page: {":".join(each.state.key): read(each) for each in page.groups}


def _by_flow(read: Callable[[ConsumerWork], float | None]) -> Callable[[GroupPage], Value]:
    """Make a metric's function: it reads one value for each group whose consumers report their work."""

    def values(page: GroupPage) -> Value:
        works = {":".join(each.state.key): each.group.work for each in page.groups}
        found = {key: read(work) for key, work in works.items() if work is not None}
        return {key: value for key, value in found.items() if value is not None}

    return values


_GROUPS: tuple[Figure[GroupPage], ...] = (
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
        "penstock_group_skipped_messages_total",
        "counter",
        "Messages that the group never gets, as retention has dropped them or their part of the log is lost.",
        _by_group(lambda found: found.reads.skipped),
        "group",
    ),
    Figure(
        "penstock_group_waits_for_tier",
        "gauge",
        "1 while the group waits for the tier, which does not give what retention has dropped; the log says why.",
        _by_group(lambda found: bool(found.reads.why)),
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

_FLOWS: tuple[Figure[GroupPage], ...] = (
    Figure(
        "penstock_flow_sent_messages_total",
        "counter",
        "Messages that a flow brought to where it leads since its process started; one from Kafka: into the store.",
        _by_flow(lambda work: work.sent),
        "group",
    ),
    Figure(
        "penstock_flow_failed_attempts_total",
        "counter",
        "Attempts that the sink failed with, each of which is tried again; of a flow from Kafka: records left out.",
        _by_flow(lambda work: work.failed),
        "group",
    ),
    Figure(
        "penstock_flow_dead_letters_total",
        "counter",
        "Messages that the flow made dead letters of.",
        _by_flow(lambda work: work.dead),
        "group",
    ),
    Figure(
        "penstock_flow_lost_records_total",
        "counter",
        "Messages that were gone before the flow took them: deleted by Kafka, or dropped by retention.",
        _by_flow(lambda work: work.lost),
        "group",
    ),
    Figure(
        "penstock_flow_outages_total",
        "counter",
        "Times that the sink, or the Kafka that the flow comes from, was found away.",
        _by_flow(lambda work: work.outages),
        "group",
    ),
    Figure(
        "penstock_flow_away",
        "gauge",
        "1 while the sink, or the Kafka that the flow comes from, is away.",
        _by_flow(lambda work: work.away),
        "group",
    ),
    Figure(
        "penstock_flow_source_lag",
        "gauge",
        "Records in Kafka that the flow has yet to bring; that of any other flow is its group's lag.",
        _by_flow(lambda work: work.lag),
        "group",
    ),
)

GROUPS: Sections[GroupPage] = {"Consumer groups": _GROUPS, "Flows": _FLOWS}
