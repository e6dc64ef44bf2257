"""What may be known of a message and one session or group that receives it."""

from typing import Literal

ReceiverState = Literal[
    "received", "in_flight", "under_way", "waiting", "retry", "dead_letter", "later", "filtered", "unknown"
]
"""What is known of a message and one receiver:

received: the position is behind it. in_flight: it was handed out and is not acknowledged. under_way: it is in front of
the position of a connected client, whose gateway sends it or waits for the acknowledgement. waiting: it is in front of
the position, and not handed out. retry: a group hands it out again. dead_letter: a group gave it up. later: the
subscription, or the group, began after it. filtered: No Local, or a group wants other tags. unknown: no position says.
"""
