"""Refuses a topic before there is a connection, so that the error can name it."""

from penstock.errors import UsageError

MAXIMUM_BYTES = 65_535


def check_topic_name(topic_name: str) -> None:
    _check_text(topic_name, "topic")
    if "+" in topic_name or "#" in topic_name:
        raise UsageError(f"topic {topic_name!r}: has a wildcard; publish to one topic")


def check_topic_filter(topic_filter: str) -> None:
    _check_text(topic_filter, "filter")
    levels = topic_filter.split("/")
    for level in levels:
        if len(level) > 1 and ("+" in level or "#" in level):
            raise UsageError(f"filter {topic_filter!r}: + and # must be a whole level")
    if "#" in levels[:-1]:
        raise UsageError(f"filter {topic_filter!r}: # must be the last level")


def _check_text(text: str, what: str) -> None:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} {text!r}: not UTF-8") from None
    if not 1 <= size_bytes <= MAXIMUM_BYTES or "\0" in text:
        raise UsageError(f"{what} {text[:80]!r}: must be 1 to {MAXIMUM_BYTES} bytes without NUL")
