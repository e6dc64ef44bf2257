"""Patterns of names, in which * stands for any characters.

Clients choose the names, so matching takes linear time: no regular expression, which may try every way to divide a name
among several stars.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

STAR = "*"


class Glob(NamedTuple):
    """A pattern with stars, as the texts before, between and after them."""

    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, pattern: str, username: str | None = None) -> Glob:
        """With `username`, %u in the pattern is replaced by this name, in which * has no meaning."""
        pieces = pattern.split(STAR)
        return cls(tuple(pieces if username is None else (piece.replace("%u", username) for piece in pieces)))

    def matches(self, name: str) -> bool:
        """Whether the pieces are in the name in this order; taking each at its first place is enough."""
        first, last = self.pieces[0], self.pieces[-1]
        if len(self.pieces) == 1:
            return name == first
        at, end = len(first), len(name) - len(last)
        if at > end or not name.startswith(first) or not name.endswith(last):
            return False
        for piece in self.pieces[1:-1]:
            at = name.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


@dataclass(frozen=True, slots=True)
class NamePattern:
    """Matches the names of a list, of which some have stars."""

    names: frozenset[str]
    globs: tuple[Glob, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> NamePattern:
        names = list(names)
        plain = frozenset(name for name in names if STAR not in name)
        return cls(plain, tuple(Glob.parse(name) for name in names if STAR in name))

    def matches(self, name: str) -> bool:
        return name in self.names or any(glob.matches(name) for glob in self.globs)
