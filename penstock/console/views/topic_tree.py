"""The topics below a level, some at a time: from each one that was found the next request leaps over all below it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.console.store.connection import StoreConnection
from store.wire import log_messages as of_log

LAST = "\U0010ffff"
"""No topic has it; a name that ends with it comes behind all that begin alike."""
SEARCH_S = 1.0
NO_END = 2**63 - 1


@dataclass(slots=True)
class TopicBranch:
    """A name at a level. `messages`: that its topic has had; None: it is a level only, or that is not known."""

    name: str
    path: str
    is_topic: bool = False
    has_more: bool = False
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class TopicLevel:
    """`after`: from where the next part goes on; empty: that was all."""

    branches: list[TopicBranch]
    after: str


async def level(connection: StoreConnection, prefix: str, after: str, most: int) -> TopicLevel:
    """The names below `prefix`, which is empty or ends with a slash. Raises a ClientError."""
    names, found = connection.names, dict[str, TopicBranch]()
    goes_on = names.topic(after) if after else ""
    while len(found) < most:
        answer, _ = await connection.request(of_log.Topics(names.topic(f"{prefix}#"), goes_on), of_log.TopicsFound)
        leap = ""
        for topic in map(names.plain_topic, answer.topics):
            if not topic.startswith(prefix) or (leap and topic.startswith(leap)):
                continue
            name, slash, _ = topic[len(prefix) :].partition("/")
            if name not in found and len(found) == most:
                return TopicLevel(await _counted(connection, found), after)
            branch = found.setdefault(name, TopicBranch(name, prefix + name))
            branch.is_topic |= not slash
            branch.has_more |= bool(slash)
            leap = f"{prefix}{name}/" if slash else ""
            after = leap + LAST if leap else topic
        if not answer.next:
            return TopicLevel(await _counted(connection, found), "")
        goes_on = max(answer.next, names.topic(leap + LAST)) if leap else answer.next
    return TopicLevel(await _counted(connection, found), after)


async def search(connection: StoreConnection, text: str, after: str, most: int) -> TopicLevel:
    """Topics that have `text` somewhere in their name. A search that takes long gives what it has found."""
    names, found = connection.names, dict[str, TopicBranch]()
    wanted, goes_on = text.casefold(), names.topic(after) if after else ""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + SEARCH_S
    while True:
        answer, _ = await connection.request(of_log.Topics(names.topic("#"), goes_on), of_log.TopicsFound)
        for topic in map(names.plain_topic, answer.topics):
            if wanted in topic.casefold():
                found[topic] = TopicBranch(topic, topic, is_topic=True)
                if len(found) == most:
                    return TopicLevel(await _counted(connection, found), topic)
        goes_on = answer.next
        if not goes_on or loop.time() > ends_s:
            return TopicLevel(await _counted(connection, found), names.plain_topic(goes_on) if goes_on else "")


async def _counted(connection: StoreConnection, found: dict[str, TopicBranch]) -> list[TopicBranch]:
    topics = [branch for branch in found.values() if branch.is_topic]
    if topics:
        request = of_log.QueueOffsets(NO_END, [connection.names.topic(branch.path) for branch in topics])
        answer, _ = await connection.request(request, of_log.QueueOffsetsFound)
        for branch, messages in zip(topics, answer.queue_offsets, strict=True):
            branch.messages = messages
    return sorted(found.values(), key=lambda branch: branch.path)
