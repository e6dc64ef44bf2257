"""`where` and `map` of a flow: expressions in CEL (https://cel.dev), compiled once and bounded in cost.

Of a message only what an expression names is made: its JSON is not decoded if nothing asks for it. CEL has no loops but
the macros over a list or map, and the library stops these after 10,000 steps in all. `map` and `filter` are refused:
they build a list, and take time that grows with its square.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

import msgspec
from cel_expr_python import cel

from penstock.flows.errors import Unfit
from penstock.sdk.message import Message

MOST_CHARACTERS: Final = 1_000  # of one expression
MOST_JSON_BYTES: Final = 1 << 20  # of a payload that is decoded
MOST_TEXT_BYTES: Final = 4 << 20  # of what a template makes
MOST_TOPICS: Final = 10_000  # of which is remembered what an expression says that names nothing else
MOST_REMEMBERED: Final = 1_000  # characters of each
OF_TOPIC: Final = {"topic", "levels"}
T = TypeVar("T")
_BUILDS = re.compile(r"\.\s*(map|filter)\s*\(")
_STRINGS = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class BadExpression(Exception):
    """An expression that does not compile."""

    def __init__(self, reason: str, remedy: str = "docs/flows.md has what an expression may name") -> None:
        super().__init__(reason)
        self.remedy = remedy


def json_of(message: HasPayload) -> Any:
    """The payload decoded. Raises Unfit."""
    payload = message.payload
    if len(payload) > MOST_JSON_BYTES:
        raise Unfit(f"a payload of {len(payload)} bytes is too large to be read as JSON")
    try:
        return _decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unfit(f"the payload is not JSON: {error}") from None


class Variables:
    """What expressions about one kind of thing may name: the types, and how each is made of a thing."""

    def __init__(self, made: Mapping[str, tuple[cel.Type, Callable[[Any], Any]]]) -> None:
        self.made = {name: make for name, (_, make) in made.items()}
        self.environment = cel.NewEnv(variables={name: kind for name, (kind, _) in made.items()})


_OF_MESSAGES: Final[dict[str, tuple[cel.Type, Callable[[Message], Any]]]] = {
    "topic": (cel.Type.STRING, lambda message: message.topic),
    "levels": (cel.Type.List(cel.Type.STRING), lambda message: message.topic.split("/")),
    "payload": (cel.Type.BYTES, lambda message: message.payload),
    "json": (cel.Type.DYN, json_of),
    "headers": (cel.Type.Map(cel.Type.STRING, cel.Type.STRING), lambda message: message.headers),
    "key": (cel.Type.STRING, lambda message: message.key or ""),
    "tag": (cel.Type.STRING, lambda message: message.tag or ""),
    "client_id": (cel.Type.STRING, lambda message: message.client_id),
    "qos": (cel.Type.INT, lambda message: message.qos),
    "retain": (cel.Type.BOOL, lambda message: message.retain),
    "time": (cel.Type.TIMESTAMP, lambda message: message.stored_at),
}
MESSAGES: Final = Variables(_OF_MESSAGES)


class HasPayload(Protocol):
    """The least that something must have for its JSON to be read."""

    @property
    def payload(self) -> bytes: ...


class Expression:
    """A compiled expression."""

    def __init__(self, text: str, variables: Variables = MESSAGES) -> None:
        """Raises BadExpression."""
        if len(text) > MOST_CHARACTERS:
            raise BadExpression(f"it has {len(text)} characters", f"use {MOST_CHARACTERS} at most")
        plain = _STRINGS.sub("''", text)
        if found := _BUILDS.search(plain):
            raise BadExpression(f"{found[1]}() builds a list of any length", "use exists(), all() or size()")
        try:
            self._compiled = variables.environment.compile(text)
        except RuntimeError as error:
            raise BadExpression(_said(error)) from None
        self.type = self._compiled.return_type()
        names = set(re.findall(r"[A-Za-z_]\w*", plain))
        self._made = [(name, make) for name, make in variables.made.items() if name in names]
        is_plain = self.type in (cel.Type.STRING, cel.Type.BYTES)
        self._variable = variables.made.get(text.strip()) if is_plain else None  # it is nothing but that
        self.is_of_topic = {name for name, _ in self._made} <= OF_TOPIC
        """Whether it has the same value for all messages of a topic."""
        self._of_topic: dict[str, Any] = {}

    def value(self, message: Any) -> Any:
        """Its value for a message. Raises Unfit."""
        if self._variable is not None:
            return self._variable(message)
        if not self.is_of_topic:
            return self._value(message)
        topic = message.topic
        value = self._of_topic.get(topic)
        if value is None:
            value = _remember(self._of_topic, topic, self._value(message))
        return value

    def _value(self, message: Any) -> Any:
        try:
            found = self._compiled.eval(data={name: make(message) for name, make in self._made})
            value = found.value()
            if value is True or value is False:
                return value
            if isinstance(value, list | dict):
                value = found.plain_value()
        except (RuntimeError, OverflowError, TypeError, ValueError) as error:
            raise Unfit(_said(error)) from None
        if found.type() == cel.Type.ERROR:
            raise Unfit(_said(value))
        return value


class Condition:
    """`where`: which messages a flow lets through."""

    def __init__(self, text: str, variables: Variables = MESSAGES) -> None:
        """Raises BadExpression."""
        self._expression = Expression(text, variables)
        if self._expression.type not in (cel.Type.BOOL, cel.Type.DYN):
            raise BadExpression(f"it gives {self._expression.type.name()}, and not a bool", "compare it with something")

    def holds(self, message: Any) -> bool:
        """Raises Unfit."""
        value = self._expression.value(message)
        if value is True or value is False:
            return value
        raise Unfit(f"`where` gives {type(value).__name__}, and not a bool")


class Template:
    """A text with expressions in braces, `alarms/{levels[1]}`. `{{` and `}}` stand for a brace each."""

    def __init__(self, text: str, variables: Variables = MESSAGES) -> None:
        """Raises BadExpression."""
        self._parts: list[str | Expression] = [
            Expression(part, variables) if is_code else part for is_code, part in _parts(text)
        ]
        self._is_of_topic = all(isinstance(part, str) or part.is_of_topic for part in self._parts)
        self._of_topic: dict[str, str] = {}

    def made(self, message: Any) -> bytes:
        """As bytes: bytes stay what they are, lists and maps become JSON. Raises Unfit."""
        return _limited(b"".join(map(_bytes, self._values(message))))

    def _values(self, message: Any) -> list[Any]:
        return [part if isinstance(part, str) else part.value(message) for part in self._parts]

    def text(self, message: Any) -> str:
        """Raises Unfit."""
        if not self._is_of_topic:
            return self._text(message)
        topic = message.topic
        text = self._of_topic.get(topic)
        return text if text is not None else _remember(self._of_topic, topic, self._text(message))

    def _text(self, message: Any) -> str:
        values = self._values(message)
        if all(type(value) is str for value in values):
            text = "".join(values)
            if len(text) > MOST_TEXT_BYTES // 4:
                _limited(text.encode())
            return text
        try:
            return _limited(b"".join(map(_bytes, values))).decode()
        except UnicodeDecodeError:
            raise Unfit("a text would have bytes that are not UTF-8") from None


def _remember(known: dict[str, T], topic: str, value: T) -> T:
    if len(known) >= MOST_TOPICS:
        known.clear()
    if not isinstance(value, str | bytes) or len(value) <= MOST_REMEMBERED:
        known[topic] = value
    return value


def _limited(found: bytes) -> bytes:
    if len(found) > MOST_TEXT_BYTES:
        raise Unfit(f"a result of {len(found)} bytes is too large")
    return found


def _bytes(value: object) -> bytes:
    match value:
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case str():
            return value.encode()
        case datetime():
            return value.isoformat().replace("+00:00", "Z").encode()
        case timedelta():
            return f"{value.total_seconds()}s".encode()
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unfit(f"a value cannot be written: {error}") from None


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """(whether it is an expression, what stands there), one part after the other. Raises BadExpression."""
    at = 0
    plain: list[str] = []
    while at < len(text):
        two = text[at : at + 2]
        if two in ("{{", "}}"):
            plain.append(two[0])
            at += 2
        elif text[at] == "{":
            if plain:
                yield False, "".join(plain)
                plain = []
            end = _end_of(text, at + 1)
            yield True, text[at + 1 : end]
            at = end + 1
        elif text[at] == "}":
            raise BadExpression(f"`}}` at character {at + 1} closes nothing", "write }} for a brace")
        else:
            plain.append(text[at])
            at += 1
    if plain:
        yield False, "".join(plain)


def _end_of(text: str, at: int) -> int:
    """Where the brace is that closes an expression; strings and braces in it count. Raises BadExpression."""
    depth = 0
    while at < len(text):
        string = _STRINGS.match(text, at)
        if string:
            at = string.end()
            continue
        if text[at] == "}" and not depth:
            return at
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
    raise BadExpression("a `{` is not closed", "write {{ for a brace")


def _said(error: object) -> str:
    """What the library says, in one line without its codes."""
    line = next(iter(str(error).strip().splitlines()), "it has no value")
    place = re.match(r"[A-Z_]+: (?:ERROR: )?(?:<input>:\d+:(\d+): )?", line)
    if place:
        line = (f"character {place[1]}: " if place[1] else "") + line[place.end() :]
    return re.sub(r" \[[A-Z_]+\]$", "", line)[:300]
