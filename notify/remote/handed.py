"""What a gateway knows of its store, for the process that replaces it: plain data, and its form in msgpack.

The new process connects under the old one's name, and goes on as after any connection that ended: the store still has
what that name follows and claimed. So what it follows, and how far its Appends have come, has to travel.
"""

from __future__ import annotations

import msgspec

from store.state.group_settings import GroupSettings
from store.wire.group_messages import GroupOpen
from store.wire.messages import Welcome


class HandedPart(msgspec.Struct, array_like=True, kw_only=True):
    """Base: an array of the fields."""


class HandedQueue(HandedPart):
    """A queue that is followed. `followed`: by so many Follows; `floor`: as the store was told."""

    ref: int
    kind: int
    topic_filter: str
    history: bool
    spills: bool
    followed: int
    next_offset: int
    floor: int


class HandedConsumer(HandedPart):
    """A consumer of a group, as the store knows it. `seen`: the last serial that came from there."""

    ref: int
    request: GroupOpen
    settings: GroupSettings
    seen: int = 0


class HandedStore(HandedPart):
    """`sequence`: number of the last Append; `welcome`: of the last connection."""

    store_name: str
    sequence: int
    end: int  # log_offset, as the next one
    safe: int
    welcome: Welcome
    queues: list[HandedQueue] = []
    consumers: list[HandedConsumer] = []
