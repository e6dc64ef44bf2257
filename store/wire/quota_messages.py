"""Requests of a gateway on behalf of users who have quotas."""

from typing import Annotated

from store.wire.base import Count, Items, Name, TopicFilter, WireMessage


class TakeMessage(WireMessage, frozen=True):
    """A user publishes what may count for it: `wanted` are bits of store.state.usage.Counted. `size_bytes`: of
    topic and payload."""

    user: Name
    wanted: Count
    topic: Name
    size_bytes: Count


class TakeSubscriptions(WireMessage, frozen=True):
    """A user's session is to have these filters, new to it. `live`: how many subscriptions the user has at this gateway
    in sessions that end with their connection, of which this is one; nil: this session does not."""

    user: Name
    client_id: Name
    topic_filters: Annotated[list[TopicFilter], Items]
    live: Count | None = None


class Taken(WireMessage, frozen=True):
    """For a message: the bits of what it counts as; for subscriptions: how many are granted, the first ones. `fault`:
    why it may not be had, or not all; empty if it may."""

    number: Count
    fault: str = ""


class LiveSubscriptions(WireMessage, frozen=True):
    """Report the number of a user's subscriptions at this gateway in sessions that end with their connection."""

    user: Name
    number: Count
