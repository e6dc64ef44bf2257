"""What a payload is, and how it is shown: as text, as JSON that folds, as bytes; and the numbers in it."""

from __future__ import annotations

import json
import math
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from penstock.console.views.json_numbers import decoded
from penstock.console.views.visible import KEPT_IN_LINES, visible
from penstock.sdk.message import COMPRESSED, FLAGS, PAYLOAD, Message
from store.records import compression

PREVIEW_CHARACTERS = 160
MOST_TEXT_CHARACTERS = 65_536
MOST_HEX_BYTES = 4_096
MOST_JSON_BYTES = 1_048_576
MOST_NODES = 2_000
MOST_DEPTH = 32
MOST_FIELDS = 50
HEX_BYTES_PER_LINE = 16


class PayloadForm(StrEnum):
    """How a payload is shown."""

    JSON = "json"
    TEXT = "text"
    HEX = "hex"


class JsonNumber(str):
    """A number of JSON as its publisher wrote it: `1.10` stays `1.10`, and no number is too long."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A value of JSON. `name`: its key or index; `text`: of a value without parts; `left_out`: parts not shown."""

    name: str
    kind: str  # object, array, string, number, word
    text: str = ""
    parts: list[JsonNode] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class HexLine:
    at: str
    bytes_text: str
    characters: str


def text_of(payload: bytes) -> str | None:
    """None: it is no UTF-8, or has control characters as text has not."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return (
        None if any(ord(each) < 32 and each not in "\t\n\r\x0c\x1b" for each in text[:MOST_TEXT_CHARACTERS]) else text
    )


def json_of(payload: bytes) -> object | None:
    """What the payload says as JSON, with numbers as JsonNumber; None: it is none, or too long."""
    if not payload or len(payload) > MOST_JSON_BYTES:
        return None
    try:
        return json.loads(payload, parse_float=_number, parse_int=_number, parse_constant=_refuse)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return None


def _number(text: str) -> JsonNumber:
    """A function of Python lets the loop have its turn within a long text; the class alone would not."""
    return JsonNumber(text)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def form_of(payload: bytes) -> PayloadForm:
    """The form that suits it."""
    if payload.lstrip()[:1] in (b"{", b"[") and json_of(payload) is not None:
        return PayloadForm.JSON
    return PayloadForm.HEX if text_of(payload) is None else PayloadForm.TEXT


def preview(payload: bytes) -> str:
    """One line of it."""
    text = text_of(payload[: 4 * PREVIEW_CHARACTERS]) if payload else ""
    if text is None and len(payload) > 4 * PREVIEW_CHARACTERS:  # it may have been cut within a character
        text = text_of(payload[: 4 * PREVIEW_CHARACTERS].decode(errors="ignore").encode())
        text = None if text_of(payload) is None else text
    if text is None:
        return payload[:32].hex(" ") + (" …" if len(payload) > 32 else "")
    line = visible(" ".join(text.split()))
    return line if len(line) <= PREVIEW_CHARACTERS else line[: PREVIEW_CHARACTERS - 1] + "…"


def preview_of(message: Message) -> str:
    """One line of a message's payload; of a compressed one no more is decompressed than that takes."""
    try:
        if not message.record[FLAGS] & COMPRESSED:
            return preview(message.payload)
        piece = next(compression.pieces(message.record[PAYLOAD]))
    except (compression.BadFrame, compression.NoLibrary) as error:
        return f"not readable: {error}"
    with suppress(UnicodeDecodeError):  # it may be cut within a character
        piece = getincrementaldecoder("utf-8")().decode(piece).encode()
    return preview(piece)


def whole_text(payload: bytes) -> str:
    """Up to MOST_TEXT_CHARACTERS of it; bytes that are no UTF-8 show as U+FFFD."""
    text = payload[: 4 * MOST_TEXT_CHARACTERS].decode(errors="replace").replace("\r\n", "\n")
    shown = visible(text[:MOST_TEXT_CHARACTERS], KEPT_IN_LINES)
    return shown if len(text) <= MOST_TEXT_CHARACTERS else f"{shown}…"


def hex_lines(payload: bytes) -> list[HexLine]:
    """The first MOST_HEX_BYTES, 16 in a line."""
    lines = []
    for at in range(0, min(len(payload), MOST_HEX_BYTES), HEX_BYTES_PER_LINE):
        part = payload[at : at + HEX_BYTES_PER_LINE]
        lines.append(HexLine(f"{at:06x}", part.hex(" "), "".join(chr(b) if 32 <= b < 127 else "·" for b in part)))
    return lines


def json_tree(payload: bytes) -> JsonNode | None:
    """What is shown as JSON: MOST_NODES values, MOST_DEPTH deep. None: it is no JSON."""
    value = json_of(payload)
    if value is None and payload.strip() != b"null":
        return None
    return _node("", value, [MOST_NODES], 0)


def _node(name: str, value: object, left: list[int], depth: int) -> JsonNode:
    left[0] -= 1
    if isinstance(value, dict | list):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        parts = []
        for key, each in items if depth < MOST_DEPTH else ():
            if left[0] <= 0:
                break
            parts.append(_node(str(key), each, left, depth + 1))
        kind = "object" if isinstance(value, dict) else "array"
        return JsonNode(name, kind, str(len(items)), parts, len(items) - len(parts))
    if isinstance(value, JsonNumber):
        return JsonNode(name, "number", value[:PREVIEW_CHARACTERS])
    if isinstance(value, str):
        return JsonNode(name, "string", json.dumps(value[:MOST_TEXT_CHARACTERS], ensure_ascii=False))
    return JsonNode(name, "word", json.dumps(value))


# --- numbers, for charts


def numeric_fields(payload: bytes) -> list[str]:
    """The JSON pointers (RFC 6901) of up to MOST_FIELDS numbers in it; `` is the payload itself."""
    found: list[str] = []
    try:
        value = decoded(payload)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return found
    for pointer in _pointers(value, "", 0):
        found.append(pointer)
        if len(found) == MOST_FIELDS:
            break
    return found


def _pointers(value: object, at: str, depth: int) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            if math.isfinite(float(value)):
                yield at
    elif isinstance(value, dict | list) and depth < MOST_DEPTH:
        items = value.items() if isinstance(value, dict) else enumerate(value[:MOST_FIELDS])
        for key, each in items:
            escaped = str(key).replace("~", "~0").replace("/", "~1")
            yield from _pointers(each, f"{at}/{escaped}", depth + 1)
