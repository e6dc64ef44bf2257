"""An index of rules by client names, so that the cost of a decision does not grow with the number of rules.

Names without a star are looked up. Patterns are looked up by their beginning, or else their end, so a name is compared
only with patterns that begin or end as it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from gateway.auth.errors import AuthError
from gateway.auth.name_patterns import Glob, NamePattern

MOST_KEY_CHARACTERS = 32
"""Of a pattern's beginning or end that count: at most so many lengths are tried for a name."""
MOST_TOPICS_FOR_ONE = 4_000
"""Topic filters in all rules that may apply to one client: a decision looks at each of them, 0.1 to 0.4 µs."""


class _ByEnd:
    """Patterns by their beginning or by their end."""

    def __init__(self, key_of: Callable[[str, int], str]) -> None:
        """`key_of(text, length)` returns the beginning or the end of a text."""
        self._key_of = key_of
        self._found: dict[str, list[tuple[Glob, int]]] = {}
        self._lengths: tuple[int, ...] = ()

    def add(self, text: str, glob: Glob, number: int) -> str:
        """Add a pattern. Returns the key that finds it."""
        length = min(len(text), MOST_KEY_CHARACTERS)
        key = self._key_of(text, length)
        self._found.setdefault(key, []).append((glob, number))
        if length not in self._lengths:
            self._lengths = (*self._lengths, length)
        return key

    def find(self, name: str) -> Iterable[int]:
        for length in self._lengths:
            for glob, number in self._found.get(self._key_of(name, length), ()):
                if glob.matches(name):
                    yield number


def _beginning(text: str, length: int) -> str:
    return text[:length]


def _end(text: str, length: int) -> str:
    return text[len(text) - length :] if length <= len(text) else text


class NameIndex:
    """Numbers of rules by the names that they apply to."""

    def __init__(self) -> None:
        self._plain: dict[str, list[int]] = {}
        self._beginnings = _ByEnd(_beginning)
        self._ends = _ByEnd(_end)
        self._topics: Counter[str] = Counter()  # number of topics by the key that finds the rules

    def add(self, pattern: NamePattern, number: int, topics: int) -> None:
        """Add a rule's pattern. Raises AuthError if a decision about one name would look at too many topics."""
        for name in pattern.names:
            self._plain.setdefault(name, []).append(number)
            self._count(name, topics)
        for glob in pattern.globs:
            first, last = glob.pieces[0], glob.pieces[-1]
            if first or not last:
                self._count(f"{self._beginnings.add(first, glob, number)}*", topics)
            else:
                self._count(f"*{self._ends.add(last, glob, number)}", topics)

    def _count(self, key: str, topics: int) -> None:
        self._topics[key] += topics
        check_topics(self._topics[key], f"that are for {key!r}")

    def find(self, name: str) -> set[int]:
        return {*self._plain.get(name, ()), *self._beginnings.find(name), *self._ends.find(name)}


def check_topics(number: int, where: str) -> None:
    if number > MOST_TOPICS_FOR_ONE:
        raise AuthError(
            f"the rules {where} have more than {MOST_TOPICS_FOR_ONE} topics together, and every decision about such a "
            "client would look at each of them; use %u, %c or wildcards in fewer topics"
        )


class RuleIndex:
    """Numbers of rules by the clients that they apply to."""

    def __init__(self, rules: Sequence[tuple[NamePattern | None, NamePattern | None, NamePattern | None, int]]) -> None:
        """`rules`: users, clients, namespaces, and number of topics of each rule. Raises AuthError."""
        self._users, self._clients, self._namespaces = NameIndex(), NameIndex(), NameIndex()
        self.for_everybody: list[int] = []
        topics_for_everybody = 0
        for number, (users, clients, namespaces, topics) in enumerate(rules):
            if users is not None:
                self._users.add(users, number, topics)
            elif clients is not None:
                self._clients.add(clients, number, topics)
            elif namespaces is not None:
                self._namespaces.add(namespaces, number, topics)
            else:
                self.for_everybody.append(number)
                topics_for_everybody += topics
        check_topics(topics_for_everybody, "for everybody")

    def find(self, username: str, client_id: str, namespace: str = "") -> list[int]:
        """Rules that may apply to a client, in order. A rule with several keys is found by its users first."""
        named = self._clients.find(client_id) | self._namespaces.find(namespace)
        if username:
            named |= self._users.find(username)
        return sorted([*self.for_everybody, *named]) if named else self.for_everybody
