"""The names that a client of the store may use: those of its namespace. Gateways and operators see to that themselves.

A client says in its Hello of which namespace it is, or its token or user does: empty is the default one, * all of them,
as the log has their names. What is not its own is refused, or, in answers that list or find, left out.
"""

from __future__ import annotations

from typing import Final

from store.namespaces import DEFAULT, Namespace, is_namespace, publish_fault
from store.records._records import topic_runs
from store.records.record_bytes import walk
from store.wire import group_messages as of_group
from store.wire import log_messages as of_log
from store.wire import messages as wire

ALL: Final = "*"
"""In place of a namespace: a client that sees what the log has."""
MOST_SHOWN: Final = 100  # characters of a name in an error
WHOLE_LOG = (of_log.Segments, of_log.ReadLog, of_log.SeekLog, of_log.ReaderAt, of_log.HoldLog, of_log.LocateTable)
"""What shows the log as it is, so is for clients of no namespace."""
_BY_GROUP = (of_group.GroupOpen, of_group.GroupReset, of_group.GroupDrop, of_group.GroupPause)


def is_named(namespace: str) -> bool:
    """Whether a Hello may say that."""
    return namespace in ("", ALL) or is_namespace(namespace)


class OwnNames:
    """The names that a client of one namespace may use."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace  # as in a Hello
        self._names = None if namespace == ALL else Namespace(namespace)

    @property
    def names(self) -> Namespace:
        """The translation between the client's names and the log's."""
        return self._names if self._names is not None else DEFAULT

    def user(self, account: str) -> str:
        """The client's name for a user of the log, if that user is of its namespace."""
        return account.removeprefix(f"{self.names.prefix}/") if self.names.name else account

    def has_topic(self, topic: str) -> bool:
        return self._names is None or self._names.has_topic(topic)

    def has_group(self, name: str) -> bool:
        return self._names is None or self._names.has_group(name)

    def fault_of_records(self, records: memoryview) -> str:
        """The reason why a client may not publish these, which were checked; empty if it may."""
        for topic_bytes, *_ in topic_runs(records):
            if topic_bytes[:1] != b"$" and not self.names.name:
                continue
            topic = topic_bytes.decode()
            if not self.has_topic(topic):
                return f"the topic {topic[:MOST_SHOWN]!r} is of another namespace"
            if fault := publish_fault(topic):
                return f"the topic {topic[:MOST_SHOWN]!r}: {fault}"
        return ""

    def fault(self, message: wire.WireMessage) -> str:
        """The reason why a client may not ask this; empty if it may."""
        names = self._names
        if names is None:
            return ""
        if isinstance(message, WHOLE_LOG):
            return "it shows the log of all namespaces" if names.name else ""
        if isinstance(message, of_log.QueueOffsets) and not all(map(self.has_topic, message.topics)):
            return "it asks for topics of other namespaces"
        topic_filter = getattr(message, "topic_filter", "")
        if topic_filter and not names.has_topic(topic_filter):
            return f"the topic filter {topic_filter[:MOST_SHOWN]!r} is of another namespace"
        if isinstance(message, _BY_GROUP) and not names.has_group(message.group):
            return f"the group {message.group[:MOST_SHOWN]!r} is of another namespace"
        return ""

    def cut(self, answer: wire.WireMessage, records: bytes) -> tuple[wire.WireMessage, bytes]:
        """An answer without what is of other namespaces."""
        if self._names is None:
            return answer, records
        match answer:
            case wire.Got() if not all(self.has_topic(record[5].decode()) for record in walk(records)):
                text = "no message begins at this log_offset, or it is not kept any more"
                return wire.Failed(wire.FailureCode.NO_SUCH_POSITION, text), b""
            case wire.Found(before, _):
                own = [data for data in _each(records) if all(self.has_topic(each[5].decode()) for each in walk(data))]
                return wire.Found(before, len(own)), b"".join(own)
            case wire.DelayedFound(messages, after):
                return wire.DelayedFound([each for each in messages if self.has_topic(each[2])], after), b""
            case of_group.GroupsListed(groups, more):
                return of_group.GroupsListed([each for each in groups if self.has_group(each.group)], more), b""
            case of_group.WorkListed(works, more):
                return of_group.WorkListed([each for each in works if self.has_group(each.group)], more), b""
            case of_group.TagsListed(tags, more):
                return of_group.TagsListed([each for each in tags if self.has_group(each.group)], more), b""
        return answer, records


def _each(records: bytes) -> list[bytes]:
    """Records one by one; each begins with its length."""
    found, at = [], 0
    while at < len(records):
        end = at + int.from_bytes(records[at : at + 4], "little")
        found.append(records[at:end])
        at = end
    return found
