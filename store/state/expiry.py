"""The message expiry interval (MQTT 5 section 3.3.2.3.3) where it stands among a stored message's properties."""

from store.records.publish_properties import MESSAGE_EXPIRY_INTERVAL, USER_PROPERTY, property_end


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
    """The position of the interval's four bytes; None: there is no interval."""
    at = 0
    while at < len(properties):
        if properties[at] == MESSAGE_EXPIRY_INTERVAL:
            return at + 1
        at = property_end(properties, at)
    return None


def last_user_property(properties: bytes, name: bytes) -> int:
    """The position of the last user property with this name; -1: there is none."""
    found, at = -1, 0
    start = bytes((USER_PROPERTY,)) + len(name).to_bytes(2, "big") + name
    while at < len(properties):
        if properties.startswith(start, at):
            found = at
        at = property_end(properties, at)
    return found
