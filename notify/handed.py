"""A gateway's knowledge of its store, for the process that replaces it: its parts, as plain data for msgpack."""

from __future__ import annotations

import msgspec

from store.state.group_settings import GroupSettings
from store.wire.group_messages import GroupOpen


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
