"""Namespaces: what stands in front of a tenant's topics, client identifiers and groups in the log, and nowhere else.

    topic       line/7         $ns:NAME/line/7          filters likewise: # is $ns:NAME/#
                $dead/G/t      $ns:NAME$dead/G/t        what begins with $ has a first level of its own
    client id   sensor-1       $ns:NAME/sensor-1
    group       G              $ns:NAME:G               $share/G/line/# is $share/$ns:NAME:G/$ns:NAME/line/#

The default namespace has no name and no prefix. As all that has one begins with $, no wildcard of the default namespace
matches it [MQTT-4.7.2-1]; nor does a namespace's `#` match what the namespace itself has below $.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from store.topics import SHARE_PREFIX

MARK: Final = "$ns:"
"""What no client may begin a topic, client identifier or group with."""
MOST_NAME_CHARACTERS: Final = 32
NAME_SHAPE: Final = f"1 to {MOST_NAME_CHARACTERS} of a-z, 0-9 and -, not beginning with -"
NAME_PATTERN: Final = rf"[a-z0-9][a-z0-9-]{{0,{MOST_NAME_CHARACTERS - 1}}}"
_NAME = re.compile(NAME_PATTERN)
SERVER_LEVEL: Final = "$SYS"
"""First level of what servers say of themselves."""
DIRECT_LEVEL: Final = "$direct"
"""First level of what is sent straight to one client: `$direct/CLIENT/...`."""
SERVERS_LEVELS: Final = frozenset({SERVER_LEVEL, "$share", "$delayed", "$dead"})
"""First levels reserved for the server, beside those that begin with `$ns:`; docs/mqtt.md describes each."""


def is_namespace(name: str) -> bool:
    """Whether a namespace can be called that."""
    return _NAME.fullmatch(name) is not None


def is_reserved(text: str) -> bool:
    """Whether a topic, filter, client identifier or group is one that only servers may name."""
    if text.startswith(SHARE_PREFIX):
        group, _, topic_filter = text.removeprefix(SHARE_PREFIX).partition("/")
        return group.startswith(MARK) or topic_filter.startswith(MARK)
    return text.startswith(MARK)


@dataclass(frozen=True, slots=True)
class Namespace:
    """Names as clients know them, and as the log has them. What is not of this namespace is left as it is."""

    name: str = ""

    @property
    def prefix(self) -> str:
        """The beginning of all its names in the log; a topic has / or $ after it."""
        return MARK + self.name if self.name else ""

    def _named(self, separator: str, name: str) -> str:
        return f"{MARK}{self.name}{separator}{name}" if self.name else name

    def _plain(self, separator: str, name: str) -> str:
        return name.removeprefix(f"{MARK}{self.name}{separator}") if self.name else name

    def topic(self, name: str) -> str:
        """A topic name, or a filter that is not shared, for the log."""
        return self._named("" if name.startswith("$") else "/", name)

    def plain_topic(self, name: str) -> str:
        if name.startswith(self.prefix + "$"):
            return name.removeprefix(self.prefix)
        return self._plain("/", name)

    def has_topic(self, name: str) -> bool:
        """Whether a topic or filter of the log is of this namespace."""
        if not self.name:
            return not name.startswith(MARK)
        return name.startswith((f"{self.prefix}/", f"{self.prefix}$"))

    def topic_filter(self, topic_filter: str) -> str:
        """A filter, perhaps a shared one, for the log."""
        group, shared = _split_shared(topic_filter)
        if shared:
            return f"{SHARE_PREFIX}{self.group(group)}/{self.topic(shared)}"
        return self.topic(topic_filter)

    def plain_filter(self, topic_filter: str) -> str:
        group, shared = _split_shared(topic_filter)
        if shared:
            return f"{SHARE_PREFIX}{self.plain_group(group)}/{self.plain_topic(shared)}"
        return self.plain_topic(topic_filter)

    def has_filter(self, topic_filter: str) -> bool:
        """Whether a filter of the log, perhaps a shared one, is of this namespace."""
        group, shared = _split_shared(topic_filter)
        if shared:
            return self.has_group(group) and self.has_topic(shared)
        return self.has_topic(topic_filter)

    def client_id(self, client_id: str) -> str:
        return self._named("/", client_id)

    def plain_client_id(self, client_id: str) -> str:
        return self._plain("/", client_id)

    def direct_filter(self, client_id: str) -> str:
        """The filter, for the log, of what is sent straight to a client; empty: nothing can be, as its identifier would
        not be one level of a topic.

        >>> Namespace("acme").direct_filter("$ns:acme/sensor-1"), DEFAULT.direct_filter("a/b")
        ('$ns:acme$direct/sensor-1/#', '')
        """
        plain = self.plain_client_id(client_id)
        return "" if not plain or any(each in plain for each in "/+#") else self.topic(f"{DIRECT_LEVEL}/{plain}/#")

    def group(self, name: str) -> str:
        return self._named(":", name)

    def plain_group(self, name: str) -> str:
        return self._plain(":", name)

    def has_group(self, name: str) -> bool:
        """Whether a group of the log is of this namespace."""
        return name.startswith(f"{self.prefix}:") if self.name else not name.startswith(MARK)


DEFAULT: Final = Namespace()


def namespace_of(name: str) -> Namespace:
    """The namespace of a topic, client identifier or group of the log."""
    if not name.startswith(MARK):
        return DEFAULT
    found = _NAME.match(name, len(MARK))
    return Namespace(found[0]) if found is not None else DEFAULT


def is_servers_own(topic: str) -> bool:
    """Whether only servers publish to a topic, by the name that clients know. Other topics that begin with $ are
    ordinary ones [MQTT-4.7.2-1].
    """
    level = topic.partition("/")[0]
    return level in SERVERS_LEVELS or level.startswith(MARK)


def publish_fault(topic: str) -> str:
    """The reason why no client may publish to a topic of the log; empty: those of its namespace may.

    >>> publish_fault("$ns:acme/line/7"), publish_fault("$ns:acme$dead/g/t")
    ('', 'what begins with $dead is the server\'s')
    """
    names = namespace_of(topic)
    plain = names.plain_topic(topic)
    if is_servers_own(plain):
        return f"what begins with {MARK if plain.startswith(MARK) else plain.partition('/')[0]} is the server's"
    if not plain or names.topic(plain) != topic:
        return "no client knows a topic by such a name"
    return ""


def shown(namespace: str) -> str:
    """The owner of a bound that is reached, in words for people."""
    return f"namespace {namespace}" if namespace else "the default namespace"


def is_servers(topic_filter: str) -> bool:
    """Whether a filter of the log is, in its namespace, for what a server says of itself."""
    return namespace_of(topic_filter).plain_topic(topic_filter).partition("/")[0] == SERVER_LEVEL


def _split_shared(topic_filter: str) -> tuple[str, str]:
    """(group, filter) of a shared subscription; two empty texts of any other."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return "", ""
    group, _, shared = topic_filter.removeprefix(SHARE_PREFIX).partition("/")
    return group, shared
