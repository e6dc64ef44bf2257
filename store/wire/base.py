"""The common part of all messages on the wire: their base, and the types of their fields."""

from typing import Annotated

from msgspec import Meta, Struct

MOST_ITEMS = 65_536  # of any list: what a frame of a few bytes each would become in memory is bounded
MOST_ITEMS_OF_CLIENT = 10_000  # of a list of queues or receipts in what a client sends: as many as it may follow
ITEMS_PER_FRAME = 4_096  # that a gateway or the SDK puts into one list, so that decoding it takes a store 0.5 ms
MOST_NAME_CHARACTERS = 65_535
ANOTHER_CONNECTION = "the same peer made another connection"  # why a store ends one
PRODUCER = "producer:"  # how the name of a client begins that may send again what it sent after a long time

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]
LogOffset = Count
QueueOffset = Count
Ref = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Name = Annotated[str, Meta(max_length=MOST_NAME_CHARACTERS)]
TopicFilter = Annotated[str, Meta(min_length=1, max_length=MOST_NAME_CHARACTERS)]
QueueName = Annotated[bytes, Meta(min_length=1, max_length=MOST_NAME_CHARACTERS + 1)]
Items = Meta(max_length=MOST_ITEMS)


class WireMessage(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of all messages. `ref` is the number of a queue that the connection follows, given out by the store."""
