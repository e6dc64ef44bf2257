"""The options of `spark.read.format("penstock")` and `spark.readStream`, parsed and checked."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.topics import validate_topic_filter, validate_topic_name
from lightqueue.queues.matching import any_of, has_wildcard, literal_prefix
from penstock.columns import COLUMNS
from penstock.spark.connection import StoreAccess
from penstock.spark.errors import BadSparkOption
from penstock.spark.store_options import CONNECTION_OPTIONS, is_address, namespace_of, store_of
from store.moments import ago_ms
from store.namespaces import DEFAULT, MARK, Namespace, is_reserved

EARLIEST, LATEST = "earliest", "latest"
EVERYTHING = ("#", "$dead/#")  # all topics of a namespace
LOG_POSITION = "log"  # the one key of a position in JSON
LOG_IDENTITY = "identity"  # of the log, in a stream's checkpoint
MOST_PARTITIONS = 10_000
AS_STORE_SAYS = "auto"  # in place of where the tier's table is: the store tells it
MOST_NAME_CHARACTERS = 256


@dataclass(frozen=True)
class At:
    """A place in the log: a log_offset, a time, or (if both are None) one of its ends."""

    latest: bool = False
    log_offset: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Request:
    """A parsed request. `starting` None: the beginning for a batch, the end for a stream."""

    path: str
    topic_filters: tuple[str, ...]  # none: everything
    starting: At | None
    ending: At | None
    columns: tuple[str, ...]
    min_partitions: int | None
    max_per_trigger: int | None
    fail_on_data_loss: bool
    push_filters: bool
    store: StoreAccess | None = None  # the store to read, instead of the folder `path`
    consumer_name: str = ""  # the name under which the store shows the stream's position
    only_topics: frozenset[bytes] | None = None  # topics that Spark pushed down, by names of the log
    tier: str | None = None  # where the table of the tier is, if it is read too; AS_STORE_SAYS: to be asked
    names: Namespace = DEFAULT  # names for the rows; topic filters are by names of the log

    @property
    def is_filtered(self) -> bool:
        """Whether some topics may not be wanted."""
        return self.only_topics is not None or bool(self.topic_filters)

    def topic_matcher(self) -> Callable[[bytes], bool] | None:
        """A function that says whether a topic is wanted; None: all are."""
        only = self.only_topics
        if not self.topic_filters:
            return None if only is None else only.__contains__
        matches = any_of(self.topic_filters)
        return matches if only is None else lambda topic: topic in only and matches(topic)

    def topics(self) -> frozenset[bytes] | None:
        """The wanted topics, if they are known by name: no filter has a wildcard."""
        if self.only_topics is not None:
            return frozenset(filter(self.topic_matcher(), self.only_topics))
        if not self.topic_filters or any(map(has_wildcard, self.topic_filters)):
            return None
        return frozenset(topic.encode() for topic in self.topic_filters)

    def topic_prefixes(self) -> list[bytes]:
        """Prefixes that cover all wanted topics; none of them begins with another."""
        found: list[bytes] = []
        for prefix in sorted({literal_prefix(name).encode() for name in self.topic_filters} or {b""}):
            if not found or not prefix.startswith(found[-1]):
                found.append(prefix)
        return found


OPTIONS = (
    "path",
    "topic",
    "topicFilter",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "columns",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "pushFilters",
    "consumerName",
    "namespace",
    "tier",
    *CONNECTION_OPTIONS,
)


def parse_options(options: Mapping[str, str]) -> Request:
    """Raises BadSparkOption."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = given.keys() - {name.lower() for name in OPTIONS}
    if unknown:
        raise BadSparkOption(f"unknown option '{min(unknown)}'; there are {', '.join(OPTIONS)}")
    path = given.get("path", "")
    names = namespace_of(given)
    store = store_of(path, given) if is_address(path) else None
    return Request(
        path=path if store else _path(given.get("path", "")),
        topic_filters=_topic_filters(given, names),
        starting=_place(given, "starting"),
        ending=_place(given, "ending"),
        columns=_columns(given.get("columns")),
        min_partitions=_count(given, "minPartitions", MOST_PARTITIONS),
        max_per_trigger=_count(given, "maxOffsetsPerTrigger", 2**63 - 1),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        push_filters=_flag(given, "pushFilters", default=False),
        store=store,
        consumer_name=_consumer_name(given, store),
        names=names or DEFAULT,
        tier=_tier(given.get("tier"), store),
    )


def _path(path: str) -> str:
    if not path:
        raise BadSparkOption(
            'load() wants the data folder of a Penstock server, such as load("/var/lib/penstock"), '
            'or the address of a store, such as load("penstock://localhost:7700")'
        )
    return os.path.abspath(path.removeprefix("file://"))  # as the driver resolves it: workers may run elsewhere


def _tier(url: str | None, store: StoreAccess | None) -> str | None:
    """The URL as the driver resolves it, or AS_STORE_SAYS. Its storage is asked when something is read there."""
    if url is None:
        return None
    if not url:
        raise BadSparkOption("tier: is empty; give it what `tier.url` of the store says, or leave it out")
    if url == AS_STORE_SAYS:
        if store is None:
            raise BadSparkOption(
                "tier 'auto': a data folder does not say where its tier is; give it what `tier.url` of the store says, "
                "or load() the address of the store"
            )
        return url
    return place_of_tier(url)


def place_of_tier(url: str) -> str:
    """Where the table is, for this process and its workers."""
    if any(find_spec(name) is None for name in ("deltalake", "obstore")):
        raise BadSparkOption("tier: needs `pip install penstock[spark,tier]` for the Python of driver and workers")
    return url if is_address(url) else os.path.abspath(url.removeprefix("file://"))


def _consumer_name(given: Mapping[str, str], store: StoreAccess | None) -> str:
    name = given.get("consumername", "")
    if name and store is None:
        raise BadSparkOption("consumerName: only a store that runs can show it; give load() its address")
    if len(name) > MOST_NAME_CHARACTERS:
        raise BadSparkOption(f"consumerName: at most {MOST_NAME_CHARACTERS} characters")
    return name


def _topic_filters(given: Mapping[str, str], names: Namespace | None) -> tuple[str, ...]:
    """The filters by names of the log. `names`: of the namespace to read; None: all."""
    if names is not None and not given.keys() & {"topic", "topicfilter"}:
        return tuple(map(names.topic, EVERYTHING))
    found: list[str] = []
    for name, validate in (("topic", validate_topic_name), ("topicFilter", validate_topic_filter)):
        for text in _texts(name, given.get(name.lower())):
            try:
                validate(text, name)
            except ProtocolError as error:
                raise BadSparkOption(f"'{text}': {error}") from None
            if text.startswith("$share/"):
                raise BadSparkOption(f"'{text}': shared subscriptions are for MQTT clients; leave $share/NAME/ out")
            if names is not None and is_reserved(text):
                raise BadSparkOption(f"'{text}': with the option namespace, names do not begin with {MARK}")
            found.append(names.topic(text) if names is not None else text)
    return tuple(found)


def _texts(name: str, value: str | None) -> list[str]:
    """One string, or several as a JSON list (a topic may contain a comma)."""
    if value is None:
        return []
    if not value.startswith("["):
        return [value]
    try:
        texts = json.loads(value)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise BadSparkOption(f"{name} '{value}': give several as a JSON list, such as json.dumps(['line/1', 'line/2'])")
    return texts


def _place(given: Mapping[str, str], side: str) -> At | None:
    offsets, timestamp = given.get(f"{side}offsets"), given.get(f"{side}timestamp")
    if offsets is not None and timestamp is not None:
        raise BadSparkOption(f"{side}Offsets and {side}Timestamp exclude each other; give one of them")
    if timestamp is not None:
        return At(timestamp_ms=_time_ms(f"{side}Timestamp", timestamp))
    if offsets is None:
        return None
    if offsets in (EARLIEST, LATEST):
        return At(latest=offsets == LATEST)
    try:
        position = json.loads(offsets)
    except ValueError:
        position = None
    if not isinstance(position, dict) or list(position) != [LOG_POSITION] or not _is_offset(position[LOG_POSITION]):
        raise BadSparkOption(
            f"{side}Offsets '{offsets}': use earliest, latest, or a log_offset as in {{\"log\": 4096}}"
        )
    return At(log_offset=position[LOG_POSITION])


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _time_ms(name: str, text: str) -> int:
    ago = ago_ms(text)
    if ago is not None:
        return ago
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise BadSparkOption(f"{name} '{text}': use -90s, -15m, -1h, -7d or an RFC 3339 time such as 2026-11-21T15:00:00Z")


def _columns(value: str | None) -> tuple[str, ...]:
    if value is None:
        return tuple(COLUMNS)
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in COLUMNS:
            raise BadSparkOption(f"columns '{value}': there is no '{name}'; there are {', '.join(COLUMNS)}")
    if len(set(names)) < len(names):
        raise BadSparkOption(f"columns '{value}': each one once")
    return names


def _count(given: Mapping[str, str], name: str, most: int) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,19}", text) or not 1 <= int(text) <= most:
        raise BadSparkOption(f"{name} '{text}': use a number from 1 to {most}")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise BadSparkOption(f"{name} '{text}': use true or false")
    return text.lower() == "true"
