"""Flows as a TOML file has them: read, and seen to be right before anything starts."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.topics import validate_topic_filter
from penstock.errors import UsageError
from penstock.flows import GROUP_PREFIX
from penstock.flows.errors import FlowError
from penstock.flows.expressions import MESSAGES, BadExpression, Condition, Template, Variables
from penstock.flows.sources.amqp.messages import QUEUES
from penstock.flows.sources.mqtt.messages import OF_BROKERS
from penstock.flows.sources.records import RECORDS
from penstock.kafka_place import KafkaMechanism

AMQP = ("amqp", "amqps")
MQTT = ("mqtt", "mqtts")
FUNCTION = "python"
KAFKA = ("kafka", "kafkas")
PENSTOCK = ("penstock", "penstocks")
Format = Literal["cloudevents", "cloudevents-binary", "cloudevents-batch", "raw"]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_UNKNOWN = re.compile(r"contains unknown field `([^`]*)`")
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_SECRET_HEADER = re.compile(r"authorization|cookie|token|secret|password|api-?key", re.IGNORECASE)

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Secret(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where a secret is: in a file, or in an environment variable. It is read when the flow starts."""

    file: str = ""
    env: str = ""

    def __repr__(self) -> str:
        return f"Secret({self.file or self.env})"

    def read(self, flow: str, field: str) -> str:
        """Raises FlowError."""
        if bool(self.file) == bool(self.env):
            raise FlowError(
                flow, field, "a secret is in a file or in the environment", 'say { file = "PATH" } or { env = "NAME" }'
            )
        if self.env:
            found = os.environ.get(self.env)
            if not found:
                raise FlowError(flow, field, f"the environment has no {self.env}", "set it, or name another one")
            return found
        try:
            found = Path(self.file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise FlowError(
                flow, field, f"{self.file}: {error}", "put the secret there, for this user to read"
            ) from None
        if not found:
            raise FlowError(flow, field, f"{self.file} is empty", "put the secret there")
        return found


class Mapped(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a message becomes; what is left out stays as it is. Texts with CEL expressions in braces."""

    topic: str | None = None
    payload: str | None = None
    key: str | None = None
    content_type: str | None = None
    headers: dict[str, str] = {}


class KafkaOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What only flows to and from Kafka have. `id`: the flow's name in Kafka; empty: "penstock.flow.NAME"."""

    exactly_once: bool = False
    id: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9._-]{1,249})?\Z")] = ""
    user: str = ""
    password: Secret | None = None
    mechanism: KafkaMechanism = "SCRAM-SHA-512"


class AmqpOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What only flows to and from AMQP have. `user`: empty: the broker's guest. `prefetch`: messages that a flow from
    AMQP has in hand."""

    vhost: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] = "/"
    user: str = ""
    password: Secret | None = None
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_000


class MqttOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What only flows to and from MQTT have. `id`: begins the client identifier; empty: "penstock-flow-NAME".
    `session_s`: how long a broker keeps what comes while a flow from it is away."""

    user: str = ""
    password: Secret | None = None
    id: Annotated[str, msgspec.Meta(max_length=200)] = ""
    version: Literal["5", "3.1.1"] = "5"
    qos: Literal[0, 1, 2] = 1
    retain: Literal["keep", "yes", "no"] = "keep"
    session_s: Annotated[int, msgspec.Meta(ge=0, le=4_294_967_295)] = 604_800


class FlowSource(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename={"from_": "from", "map_": "map"}):
    """One flow as the file has it. docs/flows.md has what each field means."""

    from_: str
    to: str
    where: str = ""
    map_: Mapped = msgspec.field(default_factory=Mapped)
    format: Format = "cloudevents"
    type: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] = "penstock.message"
    source: str = ""
    start: str = ""
    ordered: bool = False
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    batch: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100
    timeout_s: Seconds = 10.0
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 16
    retry_after_s: Seconds = 1.0
    retry_most_s: Seconds = 300.0
    headers: dict[str, str | Secret] = {}
    sign: Secret | None = None
    token: Secret | None = None
    ca_file: str = ""
    allow_addresses: list[str] = []
    rotate_bytes: Annotated[int, msgspec.Meta(ge=4096)] = 1 << 30
    kafka: KafkaOptions = KafkaOptions()
    amqp: AmqpOptions = AmqpOptions()
    mqtt: MqttOptions = MqttOptions()


_PLAIN = FlowSource("", "")
OF_GROUPS = ("format", "type", "source", "ordered", "concurrency", "batch", "attempts", "retry_after_s", "retry_most_s")
"""Fields of flows that are groups, or that send requests."""


class Flow:
    """A flow that is right as far as can be seen without its sink: its expressions are compiled, its secrets read."""

    def __init__(self, name: str, source: FlowSource) -> None:
        """Raises FlowError."""
        self.name = name
        self.said = source
        self.group = GROUP_PREFIX + name
        if not _NAME.fullmatch(name):
            raise FlowError(name, "", "a name has 1 to 100 letters, digits, _ and -", "rename it")
        scheme = source.from_.partition(":")[0]
        self.is_from_kafka, self.is_from_amqp, self.is_from_mqtt = scheme in KAFKA, scheme in AMQP, scheme in MQTT
        self._variables: Variables = MESSAGES
        if self.is_from_kafka:
            self._variables = RECORDS
            self._check_brought("Kafka", OF_GROUPS)
            self._check_topic_of_records()
        elif self.is_from_amqp:
            self._variables = QUEUES
            self._check_brought("AMQP", (*OF_GROUPS, "start"))
        elif self.is_from_mqtt:
            self._variables = OF_BROKERS
            self._check_brought("MQTT", (*OF_GROUPS, "start"))
            if source.mqtt.qos == 2:
                raise FlowError(
                    name, "mqtt.qos", "a flow takes messages at QoS 1 at most", "say 1 or 0, or leave it out"
                )
        else:
            self._check_filter()
        self.is_to_function = source.to.partition(":")[0] == FUNCTION
        self.where = self._condition(source.where)
        mapped = source.map_
        self.topic = self._template("map.topic", mapped.topic)
        self.payload = self._template("map.payload", mapped.payload)
        self.key = self._template("map.key", mapped.key)
        self.content_type = self._template("map.content_type", mapped.content_type)
        self.mapped_headers = {
            header: template
            for header, text in mapped.headers.items()
            if (template := self._template(f"map.headers.{header}", text)) is not None
        }
        self.headers = {header: self._header(header, value) for header, value in source.headers.items()}
        self.signing_key = source.sign.read(name, "sign") if source.sign is not None else ""
        self.token = source.token.read(name, "token") if source.token is not None else ""
        self.kafka_password = source.kafka.password.read(name, "kafka.password") if source.kafka.password else ""
        self.amqp_password = source.amqp.password.read(name, "amqp.password") if source.amqp.password else ""
        self.mqtt_password = source.mqtt.password.read(name, "mqtt.password") if source.mqtt.password else ""
        self.allowed = tuple(map(self._network, source.allow_addresses))

    def __repr__(self) -> str:
        return f"<Flow {self.name}>"

    def _check_filter(self) -> None:
        said = self.said.from_
        try:
            validate_topic_filter(said)
        except ProtocolError as error:
            raise FlowError(
                self.name, "from", f"{said!r} is no topic filter: {error}", 'say one, as "plant/+/temp"'
            ) from None
        if said.startswith("$share/"):
            raise FlowError(self.name, "from", "a flow is a group by itself", "leave out $share/GROUP/")

    def _check_brought(self, source: str, of_groups: Sequence[str]) -> None:
        """Of a flow from another system: fields in `of_groups` mean nothing to it."""
        said = self.said
        if said.to.partition(":")[0] not in PENSTOCK:
            reason = f"what comes from {source} goes to a store"
            raise FlowError(
                self.name, "to", reason, "say penstock: or penstock://HOST:PORT, and from there on with a flow"
            )
        for field in of_groups:
            if getattr(said, field) != getattr(_PLAIN, field):
                raise FlowError(self.name, field, f"it means nothing to a flow from {source}", "leave it out")

    def _check_topic_of_records(self) -> None:
        if self.said.map_.topic is None:
            reason = "the messages need a topic"
            raise FlowError(self.name, "map.topic", reason, 'say one, as map = { topic = "orders/{key}" }')

    def _condition(self, text: str) -> Condition | None:
        try:
            return Condition(text, self._variables) if text.strip() else None
        except BadExpression as error:
            raise FlowError(self.name, "where", str(error), error.remedy) from None

    def _template(self, field: str, text: str | None) -> Template | None:
        try:
            return Template(text, self._variables) if text is not None else None
        except BadExpression as error:
            raise FlowError(self.name, field, str(error), error.remedy) from None

    def _header(self, header: str, value: str | Secret) -> str:
        field = f"headers.{header}"
        if isinstance(value, Secret):
            return value.read(self.name, field)
        if _SECRET_HEADER.search(header):
            remedy = f'say {header} = {{ env = "NAME" }} or {{ file = "PATH" }}'
            raise FlowError(self.name, field, "a secret does not stand in this file", remedy)
        return value

    def _network(self, text: str) -> Network:
        try:
            return ipaddress.ip_network(text)
        except ValueError as error:
            raise FlowError(self.name, "allow_addresses", str(error), 'say networks, as "169.254.10.0/24"') from None


def read_flows(path: Path) -> list[Flow]:
    """The flows of a file. Raises UsageError, FlowError."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}; give a file with flows (docs/flows.md)") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is no TOML: {error}; mend that line") from None
    try:
        return _flows(path, data)
    except FlowError as error:
        raise UsageError(f"{path}: {error}") from None


def _flows(path: Path, data: dict[str, Any]) -> list[Flow]:
    tables = data.pop("flow", None)
    if data:
        raise UsageError(f"{path}: {next(iter(data))!r} is not known here; flows are tables: [flow.NAME]")
    if not isinstance(tables, dict) or not tables:
        raise UsageError(f"{path}: there is no flow; write a table [flow.NAME] with `from` and `to`")
    return [Flow(name, _source(name, table)) for name, table in tables.items()]


def _source(name: str, table: object) -> FlowSource:
    """Raises FlowError."""
    try:
        return msgspec.convert(table, FlowSource)
    except msgspec.ValidationError as error:
        raise _explained(name, str(error)) from None


def _explained(name: str, text: str) -> FlowError:
    found = _PATH.search(text)
    field = found[1].replace("[...]", "") if found else ""
    reason = _PATH.sub("", text)
    unknown = _UNKNOWN.search(reason)
    if unknown:
        near = difflib.get_close_matches(unknown[1], _fields_at(field), 1)
        return FlowError(
            name, field, f"`{unknown[1]}` is not known", f"is `{near[0]}` meant?" if near else "see docs/flows.md"
        )
    return FlowError(name, field, reason[:1].lower() + reason[1:], "see docs/flows.md")


def _fields_at(field: str) -> list[str]:
    structs: dict[str, type[msgspec.Struct]] = {
        "map": Mapped,
        "kafka": KafkaOptions,
        "amqp": AmqpOptions,
        "mqtt": MqttOptions,
        "": FlowSource,
    }
    return list(structs.get(field, Secret).__struct_encode_fields__)


def without_credentials(flow: str, field: str, url: str) -> str:
    """A URL that has no user and no password, which would be printed. Raises FlowError."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise FlowError(flow, field, "a URL has no password here", 'say headers = { Authorization = { env = "NAME" } }')
    return url
