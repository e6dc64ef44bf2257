"""The properties that a PUBLISH may have (MQTT 5.0, 2.2.2.2 and 3.3.2.3), in one table. No I/O.

Whatever reads or writes the properties of messages works from it: the gateway's codec and its scanner, the check of
what peers store, the columns of Spark and the tier, message expiry, trace context, and the SDK. The compiled leaves
have `CODES` and `COLUMN_ROWS`, an entry for each possible identifier, and the names in `store/records/_records.pxd`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Final, NamedTuple

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
TOPIC_ALIAS: Final = 0x23
USER_PROPERTY: Final = 0x26


class ValueForm(IntEnum):
    """How a property's value stands in a packet. The first three are how many bytes it has."""

    ZERO_OR_ONE = 1
    TWO_BYTES = 2
    """A big-endian integer."""
    FOUR_BYTES = 4
    """A big-endian integer."""
    VARIABLE_BYTES = 5
    """A variable byte integer: 1 to 4 bytes."""
    BINARY = 8
    """Two bytes of length, and the bytes. So do texts."""
    TEXT = 9
    """UTF-8."""
    TOPIC = 10
    """A text that is the name of a topic."""
    TWO_TEXTS = 11
    """A name and its value."""


class Keeping(Enum):
    """What becomes of a property between a publisher and its subscribers."""

    AS_IT_IS = 1
    """The record keeps it, and each subscriber gets it."""
    AGED = 2
    """The record keeps it, and who gets the message later gets a shorter interval."""
    BY_CONNECTION = 3
    """No record has it. The gateway takes it off a publisher's packet, or adds its own to a subscriber's."""


class PublishProperty(NamedTuple):
    """One line of the table: `name` as a field of `gateway.mqtt.properties.Properties`.

    `repeats`: a PUBLISH may have several. `from_client`, `in_will`: a client's PUBLISH and a will may have it; a
    PUBLISH to a client may have any. `option`: the keyword of the SDK's publish() that writes it, `column`: the column
    of messages that shows it; empty: none does.
    """

    identifier: int
    name: str
    form: ValueForm
    keeping: Keeping = Keeping.AS_IT_IS
    repeats: bool = False
    from_client: bool = True
    in_will: bool = True
    option: str = ""
    column: str = ""

    @property
    def is_stored(self) -> bool:
        """Whether a record may have it."""
        return self.keeping is not Keeping.BY_CONNECTION


_P, _F = PublishProperty, ValueForm
PUBLISH_PROPERTIES: Final[tuple[PublishProperty, ...]] = (
    _P(PAYLOAD_FORMAT_INDICATOR, "payload_format_indicator", _F.ZERO_OR_ONE),
    # Made shorter by write_publish() in gateway/mqtt/_publish.pyx, and by store/state/expiry.py.
    _P(MESSAGE_EXPIRY_INTERVAL, "message_expiry_interval", _F.FOUR_BYTES, Keeping.AGED, option="expires_after"),
    _P(CONTENT_TYPE, "content_type", _F.TEXT, option="content_type", column="content_type"),
    _P(RESPONSE_TOPIC, "response_topic", _F.TOPIC, option="response_topic", column="response_topic"),
    _P(CORRELATION_DATA, "correlation_data", _F.BINARY, option="correlation_data", column="correlation_data"),
    # Added by write_publish(); refused by gateway/clients/publishing.py [MQTT-3.3.4-6].
    _P(
        SUBSCRIPTION_IDENTIFIER,
        "subscription_identifiers",
        _F.VARIABLE_BYTES,
        Keeping.BY_CONNECTION,
        repeats=True,
        from_client=False,
        in_will=False,
    ),
    # Added by write_publish(); replaced with its topic by gateway/clients/publishing.py.
    _P(TOPIC_ALIAS, "topic_alias", _F.TWO_BYTES, Keeping.BY_CONNECTION, in_will=False),
    # gateway/delivery/receipts.py and store/records/trace_context.py know some names of user properties.
    _P(USER_PROPERTY, "user_properties", _F.TWO_TEXTS, repeats=True, option="headers", column="user_properties"),
)

MOST_VARIABLE_BYTES: Final = 4
# An entry of CODES: the form, and these bits; 0: no PUBLISH has such a property.
STORED_BIT: Final = 0x40
REPEATS_BIT: Final = 0x80


def _codes() -> bytes:
    codes = bytearray(256)
    for each in PUBLISH_PROPERTIES:
        codes[each.identifier] = each.form | each.is_stored * STORED_BIT | each.repeats * REPEATS_BIT
    return bytes(codes)


CODES: Final = _codes()
COLUMN_PROPERTIES: Final = tuple(
    each for each in PUBLISH_PROPERTIES if each.column and each.form in (_F.BINARY, _F.TEXT, _F.TOPIC)
)
"""Those with a column of values of one text, or of bytes."""
COLUMN_ROWS: Final = bytes(
    1 + rows.index(identifier) if identifier in rows else 0
    for rows in [[each.identifier for each in COLUMN_PROPERTIES]]
    for identifier in range(256)
)
"""For each identifier its place among them, from 1 on; 0: it is none of them."""

_FORM_BITS: Final = 0x0F
_VARIABLE_BYTES, _BINARY, _TWO_TEXTS = int(_F.VARIABLE_BYTES), int(_F.BINARY), int(_F.TWO_TEXTS)


def stored_properties(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Identifier and value of each property; texts with the two bytes of their length, a user property is two texts.

    What no PUBLISH has, or what is cut off, has all that is left as its value: where it ends is not known.
    """
    at = 0
    while at < len(data):
        end = property_end(data, at)
        yield data[at], data[at + 1 : end]
        at = end


def property_end(data: bytes, at: int) -> int:
    """Where the property that begins at `at` ends.

    Of one that is cut off, or that no PUBLISH has, that is the end of `data` or a place behind it.
    """
    form = CODES[data[at]] & _FORM_BITS
    at += 1
    try:
        if form >= _BINARY:
            at += 2 + (data[at] << 8 | data[at + 1])
            return at + 2 + (data[at] << 8 | data[at + 1]) if form == _TWO_TEXTS else at
        if form == _VARIABLE_BYTES:
            last = at + MOST_VARIABLE_BYTES - 1
            while data[at] & 0x80 and at < last:
                at += 1
            return at + 1
    except IndexError:
        return len(data)
    return at + form if form else len(data)
