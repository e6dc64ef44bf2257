"""A gateway's knowledge of a store in another process, for the process that replaces the gateway.

The new process connects under the old one's name, and goes on as after any connection that ended: the store still has
what that name follows and claimed. So what it follows, and how far its Appends have come, has to travel.
"""

from __future__ import annotations

import msgspec

from notify.handed import HandedConsumer, HandedPart, HandedQueue
from store.wire.messages import Welcome


class HandedStore(HandedPart):
    """`sequence`: number of the last Append; `welcome`: of the last connection."""

    store_name: str
    sequence: int
    end: int  # log_offset, as the next one
    safe: int
    welcome: Welcome
    queues: list[HandedQueue] = msgspec.field(default_factory=list)
    consumers: list[HandedConsumer] = msgspec.field(default_factory=list)
