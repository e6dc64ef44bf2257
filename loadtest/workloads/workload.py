"""A workload: what is published, to which devices, how fast; read from a TOML file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.topics import split_shared, validate_topic_name
from lightqueue.queues.matching import FilterTrie
from loadtest.errors import BadWorkload

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
QoS = Annotated[int, msgspec.Meta(ge=0, le=2)]
PayloadBytes = Annotated[int, msgspec.Meta(ge=16, le=1 << 20)]
Texts = Annotated[list[str], msgspec.Meta(min_length=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
MOST_NAMES = 2_000_000
"""Topics and filters of all devices of a workload: each takes some 100 bytes in the load generator."""
MOST_LOOKED_AT = 1_000_000
"""Topics that are matched to find how often a message is delivered."""
ALL_PUBLISHERS, ALL_SUBSCRIBERS = "publishers", "subscribers"


class Publishers(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A group of publishing devices.

    topics: of each device, in turn; `{i}` is the device's number, from 0 on, and `{i%10}` its remainder by 10.
    each: every topic stands for so many topics, numbered by `{j}`.
    rate: messages/s of all of them together, evenly spread; 0: as fast as possible.
    window: QoS 1 and 2: unacknowledged messages of each device.
    sizes: bytes of the payloads, in turn.
    name: of the group, for steps; absent: they connect when a step says so.
    """

    topics: Texts
    count: Count = 1
    qos: QoS = 0
    sizes: Annotated[list[PayloadBytes], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [100])
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0
    window: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 100
    retain: bool = False
    each: Count = 1
    name: str = ""
    absent: bool = False

    def topics_of(self, device: int) -> list[str]:
        return [_filled(topic, device, number) for topic in self.topics for number in range(self.each)]


class Subscribers(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A group of subscribing devices; filters of each, with `{i}`, `each` and `{j}` as in topics.

    keep_session: the broker keeps messages while they are away.
    """

    filters: Texts
    count: Count = 1
    qos: QoS = 0
    each: Annotated[int, msgspec.Meta(ge=1, le=2_000)] = 1
    keep_session: bool = False
    name: str = ""
    absent: bool = False

    def filters_of(self, device: int) -> list[str]:
        return [_filled(each, device, number) for each in self.filters for number in range(self.each)]


class WorkloadStep(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One step, once all devices that are not absent are connected; each step ends when its work is done.

    do: `join`: connect, and subscribe; `leave`: DISCONNECT; `cut`: close the connection without DISCONNECT;
    `publish`: so many `messages` in all, each acknowledged, or for so many `seconds`; `deliver`: wait until all
    published messages are delivered; `wait`: for `seconds`.
    who: names of groups; `publishers`, `subscribers`: all of these. Absent: all groups that can do it.
    measured: the figures are those of all measured steps together.
    """

    do: Literal["join", "leave", "cut", "publish", "deliver", "wait"]
    who: list[str] = []
    messages: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    seconds: Seconds = 0
    measured: bool = False


class Timing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Durations in seconds. Messages of `warm_up_s` are delivered, and not counted; `step_s`: longest step."""

    warm_up_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 1
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 5
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30
    step_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 120


class Workload(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A workload. Without steps: all connect, publish during warm-up and duration, and the messages are drained."""

    name: str
    text: str = ""
    publishers: list[Publishers] = []
    subscribers: list[Subscribers] = []
    steps: list[WorkloadStep] = []
    version: Annotated[int, msgspec.Meta(ge=4, le=5)] = 4
    timing: Timing = Timing()

    @property
    def devices(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def groups(self) -> list[Publishers | Subscribers]:
        return [*self.publishers, *self.subscribers]

    def deliveries(self) -> list[int | None]:
        """For each group of publishers: the number of subscribers of each message; None if it differs or is too much to
        find.
        """
        counts: dict[str, int] = {}
        for topic_filter in self._filters():
            counts[topic_filter] = counts.get(topic_filter, 0) + 1
        trie: FilterTrie[int] = FilterTrie()
        for topic_filter, count in counts.items():
            trie.set(topic_filter, count)
        return [_deliveries(group, trie) for group in self.publishers]

    def _filters(self) -> Iterator[str]:
        """All filters; those of a shared subscription once, without `$share` and its name."""
        shared: set[tuple[str, str]] = set()
        for group in self.subscribers:
            for device in range(group.count):
                for each in group.filters_of(device):
                    share_name, topic_filter = split_shared(each)
                    if share_name is None or (share_name, topic_filter) not in shared:
                        yield topic_filter
                    if share_name is not None:
                        shared.add((share_name, topic_filter))


def _deliveries(group: Publishers, filters: FilterTrie[int]) -> int | None:
    if group.count * len(group.topics) * group.each > MOST_LOOKED_AT:
        return None
    found = {sum(filters.match(topic)) for device in range(group.count) for topic in group.topics_of(device)}
    return found.pop() if len(found) == 1 else None


def _filled(template: str, device: int, number: int = 0) -> str:
    if "{" not in template:
        return template
    plain = template.replace("{i}", str(device)).replace("{j}", str(number))
    if "{" not in plain:
        return plain
    return re.sub(
        r"\{([ij])%(\d+)\}", lambda match: str((device if match[1] == "i" else number) % int(match[2])), plain
    )


def shipped() -> dict[str, Path]:
    """The workloads in the package, by name."""
    folder = resources.files("loadtest.workloads")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=str)
    return {entry.name.removesuffix(".toml"): Path(str(entry)) for entry in files}


def load(name: str) -> Workload:
    """Load a workload of the package by its name, or from a file. Raises BadWorkload."""
    path = shipped().get(name, Path(name))
    try:
        text = path.read_bytes()
    except OSError as error:
        known = ", ".join(shipped())
        raise BadWorkload(f"{name}: {error.strerror}; name a file, or one that comes along: {known}") from None
    return parse(text, str(path))


def parse(text: bytes, source: str) -> Workload:
    """Parse a workload. Raises BadWorkload."""
    try:
        workload = msgspec.toml.decode(text, type=Workload)
        _check(workload)
    except ProtocolError as error:
        raise BadWorkload(f"{source}: {error.message}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadWorkload(f"{source}: {error}") from None
    return workload


def _check(workload: Workload) -> None:
    """Check a workload. Raises ValueError and ProtocolError."""
    if not workload.publishers and not workload.subscribers:
        raise ValueError("it has neither [[publishers]] nor [[subscribers]]")
    topics = [topic for group in workload.publishers for topic in group.topics]
    filters = [topic_filter for group in workload.subscribers for topic_filter in group.filters]
    for template in topics + filters:
        if re.search(r"\{(?![ij](?:%[1-9]\d*)?\})", template):
            raise ValueError(f"{template!r}: in braces there may be i or j, or i%NUMBER")
    for topic in topics:
        validate_topic_name(_filled(topic, 0), f"topic {topic!r}")
    for topic_filter in filters:
        split_shared(_filled(topic_filter, 0), f"filter {topic_filter!r}")
    names = sum(group.count * len(group.topics) * group.each for group in workload.publishers)
    names += sum(group.count * len(group.filters) * group.each for group in workload.subscribers)
    if names > MOST_NAMES:
        raise ValueError(f"{names:,} topics and filters; there may be {MOST_NAMES:,}, so lower `count` or `each`")
    _check_steps(workload)


def _check_steps(workload: Workload) -> None:
    """Check the steps of a workload. Raises ValueError."""
    names = [group.name for group in workload.groups if group.name]
    for name in names:
        if names.count(name) > 1 or name in (ALL_PUBLISHERS, ALL_SUBSCRIBERS):
            raise ValueError(f"name {name!r}: it means several groups; give each a name of its own")
    known = [*names, ALL_PUBLISHERS, ALL_SUBSCRIBERS]
    for number, step in enumerate(workload.steps, 1):
        where = f"step {number}, {step.do}"
        unknown = [name for name in step.who if name not in known]
        if unknown:
            raise ValueError(f"{where}: {unknown[0]!r} is no group's name; there are {', '.join(known)}")
        if step.do == "publish" and bool(step.messages) == bool(step.seconds):
            raise ValueError(f"{where}: say how many messages, or for how many seconds")
        if step.do == "wait" and not step.seconds:
            raise ValueError(f"{where}: say for how many seconds")
    if workload.steps and not any(step.measured for step in workload.steps):
        raise ValueError("no step has `measured = true`, so there would be no figures")
    if not workload.steps and any(group.absent for group in workload.groups):
        raise ValueError("a group is absent, and no step lets it join")
