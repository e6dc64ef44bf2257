"""A store's questions to its tier: for history that the log no longer has, as records in log format.

The tier asks first: ServeTier says that it can take a question, TierAsked is the question, and the next ServeTier
brings the answer to it, with the records after it.
"""

from typing import Annotated

from msgspec import Meta, Struct

from store.wire.base import Count, LogOffset, Name, Positive, QueueOffset, WireMessage

MOST_PLACES = 4_096  # of one ReadPlaces
FirstQueueOffset = Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class _Part(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


class ReadRange(_Part, frozen=True, tag="range"):
    """Messages of a topic filter with start <= log_offset < stop, with a tag (empty: any)."""

    topic_filter: Name
    start: LogOffset
    stop: LogOffset
    tag: Name
    max_bytes: Positive


class ReadPlaces(_Part, frozen=True, tag="places"):
    """Messages by their log_offsets."""

    log_offsets: Annotated[list[LogOffset], Meta(max_length=MOST_PLACES)]


class FindTime(_Part, frozen=True, tag="time"):
    """The first message of a topic filter with start <= log_offset < stop that was stored at a time or later."""

    topic_filter: Name
    at_ms: Count
    start: LogOffset
    stop: LogOffset


class FindQueueOffset(_Part, frozen=True, tag="queue_offset"):
    """The first message of a topic with this queue_offset or a later one, and start <= log_offset < stop."""

    topic: Name
    queue_offset: QueueOffset
    start: LogOffset
    stop: LogOffset


class FindKey(_Part, frozen=True, tag="key"):
    """At most `most` messages with a key and a log_offset below `before`, of a topic filter (empty: any), since_ms <=
    time < until_ms; the newest first."""

    key: Name
    topic_filter: Name
    since_ms: Count
    until_ms: Count
    before: LogOffset
    most: Positive


class ReadQueue(_Part, frozen=True, tag="queue"):
    """Messages of a topic or of `level/#` with this queue_offset or a later one, and start <= log_offset < stop.

    `start` 0: wherever they are. At most `most`, whose queue_offsets are adjacent.
    """

    topic_filter: Name
    queue_offset: QueueOffset
    start: LogOffset
    stop: LogOffset
    most: Positive
    max_bytes: Positive


TierQuestion = ReadRange | ReadPlaces | FindTime | FindQueueOffset | FindKey | ReadQueue


class RangeRead(_Part, frozen=True, tag="range"):
    """To ReadRange: where to go on, how many messages follow, and the queue_offset of the first (-1: it has none).

    If none follows: how many ranges before `next` are lost, which the next message has not said."""

    next: LogOffset
    messages: Count
    queue_offset: FirstQueueOffset
    lost: Count = 0


class PlacesRead(_Part, frozen=True, tag="places"):
    """To ReadPlaces: for each place whether there is a message; for fewer places if they get too long. After it are
    these messages, in this order; `queue_offset` of the first one."""

    found: Annotated[list[bool], Meta(max_length=MOST_PLACES)]
    queue_offset: FirstQueueOffset


class TimeFound(_Part, frozen=True, tag="time"):
    """To FindTime and FindQueueOffset: the message's log_offset, or `stop`; not `found` yet: the one to go on from."""

    log_offset: LogOffset
    found: bool


class KeyFound(_Part, frozen=True, tag="key"):
    """To FindKey: how many messages follow, and the log_offset before which to go on (0: no more)."""

    before: LogOffset
    messages: Count


class QueueRead(_Part, frozen=True, tag="queue"):
    """To ReadQueue: the log_offset to go on from, how many messages follow, and the queue_offset of the first. If there
    are none (-1), there is no such message before `next`, which is not after what the table has. `upcoming`, if there
    is none from queue_offset 0 on: that of the queue's next message at `start`, as the table counts (-1: not known)."""

    next: LogOffset
    messages: Count
    queue_offset: FirstQueueOffset
    upcoming: FirstQueueOffset = -1


class TierFault(_Part, frozen=True, tag="fault"):
    """To any question: why there is no answer, in one line."""

    why: Name


TierAnswer = RangeRead | PlacesRead | TimeFound | KeyFound | QueueRead | TierFault


class ServeTier(WireMessage, frozen=True):
    """From the tier: a question may come now. The table begins at log_offset `first`. `answer`: to question `number`,
    with its records after this message. `url`: where the table is, a folder or a URL (empty: an older tier)."""

    first: LogOffset
    number: Count = 0
    answer: TierAnswer | None = None
    url: Name = ""


class TierAsked(WireMessage, frozen=True):
    """A question, perhaps after a long time. Of the records of its answer there is room for `limit_bytes`."""

    number: Positive
    limit_bytes: Positive
    question: TierQuestion
