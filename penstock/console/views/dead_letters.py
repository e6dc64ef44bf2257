"""Dead letters as API and pages show them: the message, why its group gave it up, and how often it was tried."""

from __future__ import annotations

from msgspec import Struct

from penstock.console.store.dead_letters import OpenLetter
from penstock.console.views.messages import StoredMessage, rfc3339, shown
from penstock.sdk.message import TIMESTAMP, Message
from penstock.sdk.message_id import StorePlace

SAID_OF_IT = frozenset(f"penstock-{name}" for name in ("reason", "deliveries", "topic", "filter"))
"""User properties of a dead letter that the store added, which publishing again takes away."""


class DeadLetterShown(Struct):
    """`message`: None: it is larger than an answer; read it by its id. `topic`: where its message was published; empty,
    as are the others: the letter does not say.
    """

    queue_offset: int
    log_offset: int
    message_id: str
    size_bytes: int
    topic: str = ""
    reason: str = ""
    deliveries: int = 0
    topic_filter: str = ""
    died_at: str = ""
    message: StoredMessage | None = None


class DeadLettersShown(Struct):
    """Letters, oldest first, and the cursor of those that follow; None: that was all."""

    dead_letters: list[DeadLetterShown]
    next: str | None


def letter_shown(letter: OpenLetter, place: StorePlace) -> DeadLetterShown:
    """Its message has all user properties, those of the store last."""
    queue_offset, log_offset = letter.place
    found = DeadLetterShown(queue_offset, log_offset, place.message_id(log_offset), letter.size_bytes)
    if letter.record is None:
        return found
    (found.message,) = shown([(letter.record, queue_offset)], place)
    pairs = Message(letter.record, queue_offset, place).user_properties
    said = {name: value for name, value in pairs if name in SAID_OF_IT}  # the last ones are the store's
    found.topic = said.get("penstock-topic", "")
    found.reason = said.get("penstock-reason", "")
    deliveries = said.get("penstock-deliveries", "")
    found.deliveries = int(deliveries) if deliveries.isascii() and deliveries.isdigit() and len(deliveries) < 10 else 0
    found.topic_filter = said.get("penstock-filter", "")
    found.died_at = rfc3339(letter.record[TIMESTAMP])
    return found
