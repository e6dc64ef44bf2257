"""Owners of topics, retained and delayed messages, and how many each user has. A projection of the log, kept on disk.

Keys are `u`, what it is (1 byte) and which: a topic, or due_ms and FIRST_OFFSET of a delayed message; their value is
its size in bytes (8) and the user. Keys `v`, what and the user have how many these are, and their bytes. Only what was
counted when it was stored is here; what has no owner costs nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from enum import IntFlag
from itertools import islice
from typing import NamedTuple, Protocol

from store.log.index import Index
from store.namespaces import MARK, namespace_of

OWNER_PREFIX = b"u"
COUNT_PREFIX = b"v"
COUNT_END = b"w"
KEYS_PER_STEP = 300  # what stage() hands to the index at a time: some 1 ms
BACKLOG_SHARE = 128  # one part in this many of what is not in the index goes as well


class Counted(IntFlag):
    """The kinds of items that are counted by user. The first three are bits of the attribute COUNTED as well."""

    TOPIC = 1
    RETAINED = 2
    DELAYED = 4
    SESSION = 8
    SUBSCRIPTION = 16
    DEFAULT_NAMESPACE = 32
    """Nothing that is counted: what clients of the default namespace have counts, though users are not known."""


NOTHING = Counted(0)
UNNAMED = MARK
"""In place of a user: a client of the default namespace where users are not known. It counts for that alone."""


class Used(NamedTuple):
    """A user's usage of one counted thing."""

    number: int = 0
    size_bytes: int = 0


UNUSED = Used()
Owner = tuple[str, int]
"""A user, and the bytes that count for it."""


def counted_value(counted: Counted, user: str) -> bytes:
    """The value of the attribute COUNTED: for what a message counts, and for whom."""
    return bytes((counted,)) + user.encode()


def counted_of(value: bytes) -> tuple[Counted, str]:
    return Counted(value[0] & 7), value[1:].decode()


def delayed_item(due_ms: int, first_offset: int) -> bytes:
    return due_ms.to_bytes(8, "big") + first_offset.to_bytes(8, "big")


class UsageListener(Protocol):
    """A listener for the items that records count."""

    def was_counted(self, counted: Counted, item: bytes, user: str) -> None:
        """A record counts this item for a user. Nothing may be stored now."""


class Usage:
    """Owner of both. What the index does not have of owners is in `_fresh`, oldest first, with the log_offset of it."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._fresh: OrderedDict[bytes, tuple[bytes | None, int]] = OrderedDict()
        self._used: dict[bytes, Used] = {}  # by what and the user, as it is now
        self._stored: dict[bytes, Used] = {}  # the same of what the index has
        self._of_namespaces: dict[tuple[int, str], Used] = {}  # of all who are of one, by what and its name
        self._totals: Counter[int] = Counter()  # of all users
        for key, value in index.scan(COUNT_PREFIX, COUNT_END):
            used = Used(int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big"))
            self._used[key[1:]] = self._stored[key[1:]] = used
            self._totals[key[1]] += used.number
            self._count_namespace(key[1], key[2:], used)
        self._staged: list[bytes] = []
        self._staged_used: dict[bytes, Used] = {}
        self._listener: UsageListener | None = None

    def listen(self, listener: UsageListener) -> None:
        """`listener` is told of each item that is counted from now on."""
        self._listener = listener

    def used(self, counted: Counted, user: str) -> Used:
        return self._used.get(bytes((counted,)) + user.encode(), UNUSED)

    def used_in(self, counted: Counted, namespace: str) -> Used:
        """The items of all users of a namespace."""
        return self._of_namespaces.get((counted, namespace), UNUSED)

    def owner(self, counted: Counted, item: bytes) -> Owner | None:
        """The owner of a counted item; None: it is counted for no user."""
        if not self._totals[counted]:
            return None
        value = self._value(_key(counted, item))
        return (value[8:].decode(), int.from_bytes(value[:8], "big")) if value is not None else None

    def topics(self, after: bytes, most: int) -> list[bytes]:
        """The next of the topics that the index has an owner of."""
        start = _key(Counted.TOPIC, after) + (b"\0" if after else b"")
        found = self._index.scan(start, _key(Counted.RETAINED, b""))
        return [key[2:] for key, _ in islice(found, most)]

    # --- applying

    def set(self, counted: Counted, item: bytes, user: str, log_offset: int, size_bytes: int = 0) -> None:
        """Make a user the owner of an item."""
        key = _key(counted, item)
        self._change(key, size_bytes.to_bytes(8, "big") + user.encode(), log_offset)
        if self._listener is not None:
            self._listener.was_counted(counted, item, user)

    def remove(self, counted: Counted, item: bytes, log_offset: int) -> None:
        """Remove an item that is gone, or is counted for no user any more."""
        if self._totals[counted]:
            self._change(_key(counted, item), None, log_offset)

    def _change(self, key: bytes, value: bytes | None, log_offset: int) -> None:
        before = self._value(key)
        if before == value:
            return
        self._totals[key[1]] += (value is not None) - (before is not None)
        for each, sign in ((before, -1), (value, 1)):
            _count(self._used, key, each, sign)
            if each is not None:
                self._count_namespace(key[1], each[8:], Used(sign, sign * int.from_bytes(each[:8], "big")))
        self._fresh[key] = value, log_offset
        self._fresh.move_to_end(key)

    def _count_namespace(self, counted: int, user: bytes, more: Used) -> None:
        whose = counted, namespace_of(user.decode()).name
        before = self._of_namespaces.get(whose, UNUSED)
        self._of_namespaces[whose] = Used(before.number + more.number, before.size_bytes + more.size_bytes)
        if not self._of_namespaces[whose].number:
            del self._of_namespaces[whose]

    def _value(self, key: bytes) -> bytes | None:
        found = self._fresh.get(key)
        return found[0] if found is not None else self._index.get(key)

    # --- the index

    def stage(self, until: int) -> int | None:
        """Hand some of what the index does not have to it, for its next write; once that succeeded, call written().

        All that was said before `until` goes, but no more than takes a short time. Returns the log_offset of the oldest
        that is still missing then; None if nothing is.
        """
        self._staged.clear()
        self._staged_used.clear()
        most = KEYS_PER_STEP + len(self._fresh) // BACKLOG_SHARE
        missing = None
        for key, (value, log_offset) in islice(self._fresh.items(), most + 1):
            if len(self._staged) == most or log_offset >= until:
                missing = log_offset
                break
            self._staged.append(key)
            before = self._index.get(key)
            for each, sign in ((before, -1), (value, 1)):
                if each is not None:
                    whose = key[1:2] + each[8:]
                    self._staged_used.setdefault(whose, self._stored.get(whose, UNUSED))
                    _count(self._staged_used, key, each, sign, keeps=True)
            if value is None:
                self._index.delete(key)
            else:
                self._index.put(key, value)
        for whose, used in self._staged_used.items():
            if used.number:
                self._index.put(COUNT_PREFIX + whose, b"".join(each.to_bytes(8, "big") for each in used))
            else:
                self._index.delete(COUNT_PREFIX + whose)
        return missing

    def written(self) -> None:
        """The index has what was staged."""
        for key in self._staged:
            del self._fresh[key]
        for whose, used in self._staged_used.items():
            if used.number:
                self._stored[whose] = used
            else:
                self._stored.pop(whose, None)
        self._staged.clear()
        self._staged_used.clear()


def _key(counted: Counted, item: bytes) -> bytes:
    return OWNER_PREFIX + bytes((counted,)) + item


def _count(used: dict[bytes, Used], key: bytes, value: bytes | None, sign: int, keeps: bool = False) -> None:
    """Add an owner's value to what its user has, or take it away (-1). `keeps`: a user who has nothing left, too."""
    if value is None:
        return
    whose = key[1:2] + value[8:]
    number, size_bytes = used.get(whose, UNUSED)
    found = Used(number + sign, size_bytes + sign * int.from_bytes(value[:8], "big"))
    if found.number or keeps:
        used[whose] = found
    else:
        del used[whose]
