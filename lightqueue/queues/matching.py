"""Matching of topic filters and topic names (MQTT 5 section 4.7). The same file runs interpreted or compiled."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from store.topics import ANY_LEVEL, ANY_LEVELS, SEPARATOR

Value = TypeVar("Value")


def overlap(one: str, other: str) -> bool:
    """Whether a topic name exists that both filters match ($-topics treated like any other)."""
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
    """The prefix that all topics of a filter share; `line` for `line/#`, which matches `line` as well."""
    ends = [topic_filter.index(wild) for wild in (ANY_LEVEL, ANY_LEVELS) if wild in topic_filter]
    head = topic_filter[: min(ends, default=None)]
    return head.removesuffix(SEPARATOR) if ANY_LEVELS in topic_filter else head


NO_CHILDREN: dict[str, Any] = {}  # of all nodes that have none; nothing is put into it


class _Node(Generic[Value]):
    """Successive levels of filters, and the nodes below them. There are at most two nodes per filter."""

    __slots__ = ("children", "levels", "value")

    def __init__(self, levels: tuple[str, ...]) -> None:
        self.levels = levels
        self.children: dict[str, _Node[Value]] = NO_CHILDREN  # by the first of their levels
        self.value: Value | None = None

    def divide(self, count: int) -> "_Node[Value]":
        """Split off the first `count` levels as a node of their own, with this one, shortened, below it."""
        first: _Node[Value] = _Node(self.levels[:count])
        self.levels = self.levels[count:]
        first.add(self)
        return first

    def add(self, child: "_Node[Value]") -> "_Node[Value]":
        """Put a node below this one."""
        if self.children is NO_CHILDREN:
            self.children = {}
        self.children[child.levels[0]] = child
        return child

    def drop(self, child: "_Node[Value]") -> None:
        del self.children[child.levels[0]]
        if not self.children:
            self.children = NO_CHILDREN


class FilterTrie(Generic[Value]):
    """Topic filters, each with a value. A match takes time by the topic's levels, not by the number of filters."""

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node(())
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def set(self, topic_filter: str, value: Value) -> None:
        """Set a filter's value."""
        node, levels = self._root, tuple(topic_filter.split(SEPARATOR))
        while levels:
            child = node.children.get(levels[0])
            if child is None:
                child = node.add(_Node(levels))
            elif (same := _in_common(child.levels, levels)) < len(child.levels):
                child = node.add(child.divide(same))
            node, levels = child, levels[len(child.levels) :]
        self._size += node.value is None
        node.value = value

    def remove(self, topic_filter: str) -> None:
        """Remove a filter; an unknown one is ignored."""
        path, levels = [self._root], tuple(topic_filter.split(SEPARATOR))
        while levels:
            child = path[-1].children.get(levels[0])
            if child is None or child.levels != levels[: len(child.levels)]:
                return
            path.append(child)
            levels = levels[len(child.levels) :]
        node = path.pop()
        self._size -= node.value is not None
        node.value = None
        if not node.children:
            path[-1].drop(node)
            node = path.pop()
        if path and node.value is None and len(node.children) == 1:  # merge it with its only child
            (child,) = node.children.values()
            child.levels = node.levels + child.levels
            path[-1].children[child.levels[0]] = child

    def match(self, topic_name: str) -> list[Value]:
        """The values of all filters that match."""
        found: list[Value] = []
        levels = topic_name.split(SEPARATOR)
        count = len(levels)
        reached: list[list[_Node[Value]]] = [[] for _ in range(count + 1)]  # nodes by the number of levels matched
        reached[0].append(self._root)
        for at, level in enumerate(levels):
            wilds = (level, ANY_LEVEL) if at or not topic_name.startswith("$") else (level,)
            for node in reached[at]:  # thousands of filters may match: few calls in here
                children = node.children
                rest = children.get(ANY_LEVELS) if len(wilds) > 1 else None
                if rest is not None and rest.value is not None:
                    found.append(rest.value)
                for wanted in wilds:
                    child = children.get(wanted)
                    if child is None:
                        continue
                    if len(child.levels) == 1:
                        reached[at + 1].append(child)
                    elif (end := _after(child.levels, levels, at)) <= count:
                        reached[end].append(child)
                    elif end == BEYOND and child.value is not None:
                        found.append(child.value)
        for node in reached[count]:
            if node.value is not None:
                found.append(node.value)
            if node.children is not NO_CHILDREN:
                rest = node.children.get(ANY_LEVELS)  # `a/#` matches `a`
                if rest is not None and rest.value is not None:
                    found.append(rest.value)
        return found


NOWHERE, BEYOND = 1 << 30, 1 << 29


def _in_common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """The number of levels that two filters share at their beginning."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _after(wanted: tuple[str, ...], levels: list[str], at: int) -> int:
    """Index of the topic's level after these levels of a filter, the first of which matches at `at`; BEYOND if they
    end in a `#` that matches the rest, NOWHERE if they do not match.
    """
    for i in range(1, len(wanted)):
        want, at = wanted[i], at + 1
        if want == ANY_LEVELS:
            return BEYOND
        if at == len(levels) or want not in (ANY_LEVEL, levels[at]):
            return NOWHERE
    return at + 1


def any_of(topic_filters: Iterable[str]) -> Callable[[bytes], bool]:
    """A function that says whether any of these filters matches a topic name."""
    trie: FilterTrie[bool] = FilterTrie()
    for topic_filter in topic_filters:
        trie.set(topic_filter, True)
    return lambda topic: bool(trie.match(topic.decode()))
