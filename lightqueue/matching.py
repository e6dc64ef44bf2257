"""Which topic filters match a topic name (MQTT 5 section 4.7). The same file runs interpreted or compiled."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

SEPARATOR = "/"
ANY_LEVEL = "+"
ANY_LEVELS = "#"

Value = TypeVar("Value")


def matches(topic_filter: str, topic_name: str) -> bool:
    """Whether one filter matches one topic name; a filter that starts with a wildcard matches no $-topic."""
    if topic_name.startswith("$") and topic_filter[0] in "+#":
        return False
    levels = topic_name.split(SEPARATOR)
    wanted = topic_filter.split(SEPARATOR)
    for i, want in enumerate(wanted):
        if want == ANY_LEVELS:
            return True
        if i == len(levels) or want not in (ANY_LEVEL, levels[i]):
            return False
    return len(wanted) == len(levels)


def overlap(one: str, other: str) -> bool:
    """Whether some topic name is matched by both filters ($-topics looked at like any other)."""
    left, right = one.split(SEPARATOR), other.split(SEPARATOR)
    for a, b in zip(left, right, strict=False):
        if ANY_LEVELS in (a, b):
            return True
        if a != b and ANY_LEVEL not in (a, b):
            return False
    longer = left if len(left) > len(right) else right
    shorter = min(len(left), len(right))
    return len(longer) == shorter or (len(longer) == shorter + 1 and longer[shorter] == ANY_LEVELS)


def has_wildcard(topic_filter: str) -> bool:
    return ANY_LEVEL in topic_filter or ANY_LEVELS in topic_filter


def literal_prefix(topic_filter: str) -> str:
    """What all topics that a filter matches begin with; `line` for `line/#`, which matches `line` as well."""
    ends = [topic_filter.index(wild) for wild in (ANY_LEVEL, ANY_LEVELS) if wild in topic_filter]
    head = topic_filter[: min(ends, default=None)]
    return head.removesuffix(SEPARATOR) if ANY_LEVELS in topic_filter else head


class _Node(Generic[Value]):
    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Value]] = {}
        self.value: Value | None = None


class FilterTrie(Generic[Value]):
    """Topic filters, each with a value, found by topic name in time that depends on its levels, not on the filters."""

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def set(self, topic_filter: str, value: Value) -> None:
        """Give a filter its value."""
        node = self._root
        for level in topic_filter.split(SEPARATOR):
            node = node.children.setdefault(level, _Node())
        self._size += node.value is None
        node.value = value

    def remove(self, topic_filter: str) -> None:
        """Forget a filter; one that is not there is ignored."""
        path = [self._root]
        levels = topic_filter.split(SEPARATOR)
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                return
            path.append(child)
        self._size -= path[-1].value is not None
        path[-1].value = None
        for parent, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            child = parent.children[level]
            if child.children or child.value is not None:
                return
            del parent.children[level]

    def match(self, topic_name: str) -> list[Value]:
        """The values of all filters that match."""
        found: list[Value] = []
        levels = topic_name.split(SEPARATOR)
        nodes = [self._root]
        if topic_name.startswith("$"):  # no wildcard at the first level matches these
            nodes = [child for child in (self._root.children.get(levels.pop(0)),) if child is not None]
        for level in levels:
            following: list[_Node[Value]] = []
            for node in nodes:
                _take(node.children.get(ANY_LEVELS), found)
                for child in (node.children.get(level), node.children.get(ANY_LEVEL)):
                    if child is not None:
                        following.append(child)
            nodes = following
        for node in nodes:
            _take(node, found)
            _take(node.children.get(ANY_LEVELS), found)  # `a/#` matches `a`
        return found


def _take(node: _Node[Value] | None, found: list[Value]) -> None:
    if node is not None and node.value is not None:
        found.append(node.value)


def any_of(topic_filters: Iterable[str]) -> Callable[[bytes], bool]:
    """Says of a topic name whether some of these filters matches it."""
    trie: FilterTrie[bool] = FilterTrie()
    for topic_filter in topic_filters:
        trie.set(topic_filter, True)
    return lambda topic: bool(trie.match(topic.decode()))
