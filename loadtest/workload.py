"""What is published, to whom, how fast: a workload, from a TOML file that anyone can write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from gateway.errors import ProtocolError
from gateway.topics import split_shared, validate_topic_name
from lightqueue.matching import has_wildcard, matches
from loadtest.errors import BadWorkload

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
QoS = Annotated[int, msgspec.Meta(ge=0, le=2)]
PayloadBytes = Annotated[int, msgspec.Meta(ge=16, le=1 << 20)]
Texts = Annotated[list[str], msgspec.Meta(min_length=1)]
MOST_PAIRS = 20_000_000
"""Topics times wildcard filters that are looked at to know how often a message is delivered."""


class Publishers(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Devices that publish alike.

    topics: of each, in turn; `{i}` is the device's number, from 0 on, and `{i%10}` the rest of its division by 10.
    rate: messages/s of all of them together, evenly spread; 0: as fast as it goes.
    window: QoS 1 and 2: how many messages of each may be unacknowledged.
    sizes: bytes of the payloads, in turn.
    """

    topics: Texts
    count: Count = 1
    qos: QoS = 0
    sizes: Annotated[list[PayloadBytes], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [100])
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0
    window: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 100
    retain: bool = False

    def topics_of(self, device: int) -> list[str]:
        return [_filled(topic, device) for topic in self.topics]


class Subscribers(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Devices that subscribe alike; filters of each, with `{i}` as in topics."""

    filters: Texts
    count: Count = 1
    qos: QoS = 0

    def filters_of(self, device: int) -> list[str]:
        return [_filled(topic_filter, device) for topic_filter in self.filters]


class Timing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How long, in seconds. What is sent in `warm_up_s` is delivered, and not counted."""

    warm_up_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 1
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 5
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30


class Workload(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: str
    text: str = ""
    publishers: list[Publishers] = []
    subscribers: list[Subscribers] = []
    version: Annotated[int, msgspec.Meta(ge=4, le=5)] = 4
    timing: Timing = Timing()

    @property
    def devices(self) -> int:
        return sum(group.count for group in self.publishers) + sum(group.count for group in self.subscribers)

    def deliveries(self) -> list[int | None]:
        """For each group of publishers: how many subscribers get each message; None if that differs or is too much."""
        exact: dict[str, int] = {}
        wildcards: dict[str, int] = {}
        for topic_filter in self._filters():
            by = wildcards if has_wildcard(topic_filter) else exact
            by[topic_filter] = by.get(topic_filter, 0) + 1
        return [_deliveries(group, exact, wildcards) for group in self.publishers]

    def _filters(self) -> Iterator[str]:
        """All there are; those of a shared subscription once, without `$share` and its name."""
        shared: set[tuple[str, str]] = set()
        for group in self.subscribers:
            for device in range(group.count):
                for each in group.filters_of(device):
                    share_name, topic_filter = split_shared(each)
                    if share_name is None or (share_name, topic_filter) not in shared:
                        yield topic_filter
                    if share_name is not None:
                        shared.add((share_name, topic_filter))


def _deliveries(group: Publishers, exact: dict[str, int], wildcards: dict[str, int]) -> int | None:
    if group.count * len(group.topics) * len(wildcards) > MOST_PAIRS:
        return None
    found = {
        exact.get(topic, 0) + sum(count for name, count in wildcards.items() if matches(name, topic))
        for device in range(group.count)
        for topic in group.topics_of(device)
    }
    return found.pop() if len(found) == 1 else None


def _filled(template: str, device: int) -> str:
    return re.sub(r"\{i(?:%(\d+))?\}", lambda match: str(device % int(match[1]) if match[1] else device), template)


def shipped() -> dict[str, Path]:
    """The workloads that come along, by name."""
    folder = resources.files("loadtest") / "workloads"
    return {entry.name.removesuffix(".toml"): Path(str(entry)) for entry in sorted(folder.iterdir(), key=str)}


def load(name: str) -> Workload:
    """A workload by the name of one that comes along, or by its file. Raises BadWorkload."""
    path = shipped().get(name, Path(name))
    try:
        text = path.read_bytes()
    except OSError as error:
        known = ", ".join(shipped())
        raise BadWorkload(f"{name}: {error.strerror}; name a file, or one that comes along: {known}") from None
    return parse(text, str(path))


def parse(text: bytes, source: str) -> Workload:
    """Raises BadWorkload."""
    try:
        workload = msgspec.toml.decode(text, type=Workload)
        _check(workload)
    except ProtocolError as error:
        raise BadWorkload(f"{source}: {error.message}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadWorkload(f"{source}: {error}") from None
    return workload


def _check(workload: Workload) -> None:
    """Raises ValueError and ProtocolError."""
    if not workload.publishers and not workload.subscribers:
        raise ValueError("it has neither [[publishers]] nor [[subscribers]]")
    topics = [topic for group in workload.publishers for topic in group.topics]
    filters = [topic_filter for group in workload.subscribers for topic_filter in group.filters]
    for template in topics + filters:
        if re.search(r"\{(?!i(?:%[1-9]\d*)?\})", template):
            raise ValueError(f"{template!r}: in braces there may be i, or i%NUMBER")
    for topic in topics:
        validate_topic_name(_filled(topic, 0), f"topic {topic!r}")
    for topic_filter in filters:
        split_shared(_filled(topic_filter, 0), f"filter {topic_filter!r}")
