"""W3C Trace Context in the MQTT 5 properties of stored messages: the user properties `traceparent` and `tracestate`.

Sources: W3C Trace Context, levels 1 and 2; Trace Context for MQTT (W3C registry), which names the user properties.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from store.records.publish_properties import USER_PROPERTY, stored_properties

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_NAME, _STATE_NAME = TRACEPARENT.encode(), TRACESTATE.encode()
NEEDLE = bytes((USER_PROPERTY, 0, len(_NAME))) + _NAME
"""How a property `traceparent` begins. A payload may have the same bytes."""
MOST_PROPERTIES = 64  # of a message, that are searched: some 20 µs; one with more names no span
MOST_VALUE_BYTES = 512  # of a traceparent, or of a tracestate
TRACEPARENT_BYTES = 55  # of version 00
SAMPLED = 1
_VERSION_00 = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ZERO_TRACE, _ZERO_SPAN = "0" * 32, "0" * 16


class TraceContext(NamedTuple):
    """A span, as a message names it: the parent of what is done with the message."""

    trace_id: str
    """32 lower-case hexadecimal digits."""
    span_id: str
    """16 lower-case hexadecimal digits."""
    flags: int
    tracestate: str = ""

    @property
    def is_sampled(self) -> bool:
        """True if the caller may have recorded the trace."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The value of the property, in version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(value: bytes) -> TraceContext | None:
    """Read a traceparent; None: it is not valid. Of a later version the part that version 00 defines is read.

    >>> parse_traceparent(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").span_id
    'b7ad6b7169203331'
    """
    found = _VERSION_00.match(value) if len(value) <= MOST_VALUE_BYTES else None
    if found is None or found[1] == b"ff":
        return None
    if len(value) > TRACEPARENT_BYTES and (found[1] == b"00" or value[TRACEPARENT_BYTES] != ord("-")):
        return None
    trace_id, span_id = found[2].decode(), found[3].decode()
    if trace_id == _ZERO_TRACE or span_id == _ZERO_SPAN:
        return None
    return TraceContext(trace_id, span_id, int(found[4], 16))


def find_context(properties: bytes) -> TraceContext | None:
    """The context that a message carries; None if it has none, several, or one that is not valid."""
    if NEEDLE not in properties:
        return None
    parents: list[bytes] = []
    states: list[bytes] = []
    for count, (identifier, value) in enumerate(stored_properties(properties)):
        if count == MOST_PROPERTIES:
            return None
        if identifier == USER_PROPERTY:
            name, text = _pair(value)
            if name == _NAME:
                parents.append(text)
            elif name == _STATE_NAME:
                states.append(text)
    context = parse_traceparent(parents[0]) if len(parents) == 1 else None
    if context is None or sum(map(len, states)) > MOST_VALUE_BYTES:
        return context
    return context._replace(tracestate=b",".join(states).decode("ascii", "replace"))


def with_context(properties: bytes, context: TraceContext) -> bytes:
    """The properties with this `traceparent` in the place of the present one, or at the end."""
    value = context.traceparent.encode()
    made = NEEDLE + len(value).to_bytes(2, "big") + value
    kept: list[bytes] = []
    is_there = False
    for identifier, data in stored_properties(properties):
        if identifier == USER_PROPERTY and _pair(data)[0] == _NAME:
            kept.append(made)
            is_there = True
        else:
            kept.append(bytes((identifier,)) + data)
    return b"".join(kept if is_there else [*kept, made])


def _pair(value: bytes) -> tuple[bytes, bytes]:
    """Name and value of a user property."""
    end = 2 + int.from_bytes(value[:2], "big")
    return value[2:end], value[end + 2 :]
