"""The number at a path of a JSON text, for charts and series."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

MOST_JSON_BYTES = 1_048_576
"""A longer text is not looked into: it takes the interpreter for itself for some 10 ms for each MiB."""
_DECODER = msgspec.json.Decoder(float_hook=float)
"""Numbers beyond a float are infinite, and do not spoil the text around them."""


def path_of(pointer: str) -> list[str]:
    """The path that a JSON pointer (RFC 6901) names.

    >>> path_of(""), path_of("/a~1b/~0/1")
    ([], ['a/b', '~', '1'])
    """
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def decoded(payload: bytes) -> Any:
    """What a JSON text says. Raises msgspec.DecodeError, RecursionError; ValueError if it is too long."""
    if len(payload) > MOST_JSON_BYTES:
        raise ValueError(f"{len(payload)} bytes of JSON")
    return _DECODER.decode(payload)


def number_at(payload: bytes, path: Iterable[str]) -> float | None:
    """The number at a path of a JSON text; of a list, a part of the path is an index.

    None if there is none, or the text is too long.

    >>> number_at(b'{"a": [{"b": 2}]}', ["a", "0", "b"]), number_at(b"21.5", [])
    (2.0, 21.5)
    """
    try:
        found = decoded(payload)
        for name in path:
            found = found[_index(name)] if isinstance(found, list) else found[name]
        value = float(found) if not isinstance(found, bool | str) else math.nan
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _index(name: str) -> int:
    """Raises ValueError."""
    if not (name.isascii() and name.isdigit()):
        raise ValueError(name)
    return int(name)
