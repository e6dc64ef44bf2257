"""Log lines on standard error: one per event, as text or JSON.

Messages quote text from clients (client identifiers, topics, reasons). That text must not end a line, move the cursor
or change the direction of text, so unprintable characters are escaped.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
TRACEBACK_INDENT = "\n  | "

# JSON itself escapes characters below U+0020; these end a line, or are invalid, for some readers of JSON.
_NOT_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with every unprintable character written as a Python escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class TextLines(logging.Formatter):
    """Lines for people. The lines of a traceback are marked, so that none looks like an event."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return TRACEBACK_INDENT.join(printable(line) for line in super().format(record).split("\n"))


def json_line(fields: Mapping[str, object]) -> str:
    """One JSON object in which no character ends the line for any reader."""
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(fields, ensure_ascii=False))


class JsonLines(logging.Formatter):
    """Lines for log collectors: one object per line. Frequent events have `event`, the name of their kind."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if hasattr(record, "event"):
            line["event"] = record.event
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_line(line)


def announce(event: str, url: str, **details: object) -> None:
    """Print a line for scripts on standard output, in the form of the log: text, or a JSON object."""
    text = " ".join([event, url, *(f"{name}={value}" for name, value in details.items())])
    handlers = logging.getLogger("penstock").handlers
    if handlers and isinstance(handlers[0].formatter, JsonLines):
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        shown = {name: value if isinstance(value, int) else str(value) for name, value in details.items()}
        text = json_line({"time": now, "level": "info", "event": event, "message": text, "url": url, **shown})
    print(text, flush=True)


def announced(line: bytes) -> tuple[str, str]:
    """Event and URL of a line that announce() wrote, in either form; both empty for another line.

    >>> announced(b"ready tcp://127.0.0.1:7700 data=penstock-data")
    ('ready', 'tcp://127.0.0.1:7700')
    """
    if line.startswith(b"{"):
        found = json.loads(line)
        return found["event"], found["url"]
    event, url, *_ = [*line.decode().split(), "", ""]
    return event, url


def set_up_logging(level: str, form: str) -> None:
    """`level`: debug, info, warning, error; `form`: text, json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    for name in ("penstock", "asyncio"):  # asyncio logs errors that no code caught
        root = logging.getLogger(name)
        root.handlers[:] = [handler]
        root.setLevel(level.upper())
        root.propagate = False
