"""The message expiry interval (MQTT 5 section 3.3.2.3.3) where it stands among a stored message's properties."""

EXPIRY = 0x02
# Sizes of the values of the other properties a PUBLISH may have; None: a two-byte length comes first.
_SIZES: dict[int, int | None] = {0x01: 1, 0x02: 4, 0x03: None, 0x08: None, 0x09: None, 0x23: 2, 0x26: None}
_USER_PROPERTY = 0x26
_SUBSCRIPTION_IDENTIFIER = 0x0B


def age(properties: bytes, age_s: int) -> bytes | None:
    """The same properties `age_s` later: the interval is that much shorter. None if the message has expired.

    An interval of 0 s is over once a second has passed: the message is for those who are there.
    """
    at = _value_at(properties)
    if at is None:
        return properties
    interval_s = int.from_bytes(properties[at : at + 4], "big")
    left_s = interval_s - max(0, age_s)
    if left_s < 0 or (left_s == 0 and interval_s):
        return None
    return properties[:at] + left_s.to_bytes(4, "big") + properties[at + 4 :]


def _value_at(properties: bytes) -> int | None:
    """Where the interval's four bytes begin; None if there is none."""
    at = 0
    while at < len(properties):
        if properties[at] == EXPIRY:
            return at + 1
        at = _next_property(properties, at)
    return None


def last_user_property(properties: bytes, name: bytes) -> int:
    """Where the last user property of this name begins; -1 if there is none."""
    found, at = -1, 0
    start = bytes((_USER_PROPERTY,)) + len(name).to_bytes(2, "big") + name
    while at < len(properties):
        if properties.startswith(start, at):
            found = at
        at = _next_property(properties, at)
    return found


def _next_property(properties: bytes, at: int) -> int:
    identifier = properties[at]
    at += 1
    if identifier == _SUBSCRIPTION_IDENTIFIER:
        while properties[at] & 0x80:
            at += 1
        return at + 1
    if identifier not in _SIZES:
        return len(properties)  # not a PUBLISH's; nothing behind it can be found
    size = _SIZES[identifier]
    if size is not None:
        return at + size
    for _ in range(2 if identifier == _USER_PROPERTY else 1):
        at += 2 + int.from_bytes(properties[at : at + 2], "big")
    return at
