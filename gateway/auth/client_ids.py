"""The client identifiers that a user may take: `auth.client_ids`, in which %u is the user's name and * any characters.

One user name may begin with another: with `%u-*` the client identifier `dev-1-x` fits the users `dev` and `dev-1`. It
belongs to the known user with the longest name that fits. No name in a password file has a `:`, and users of other
kinds with a `:` in their name get no client identifier if the pattern begins with `%u:`; so with `%u:*` each client
identifier belongs to one user.
"""

from __future__ import annotations

from collections.abc import Container

from gateway.auth.name_patterns import STAR, Glob

SEPARATOR = ":"
MOST_CHARACTERS = 1_024  # of a client identifier in which a user's name is looked for; a longer one belongs to no user


class ClientIds:
    """A parsed pattern. Raises ValueError if the pattern cannot tell users apart."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        before, self._has_user, after = pattern.partition("%u")
        if "%u" in after:
            raise ValueError(f"auth.client_ids: {pattern!r} has %u twice; the user's name is in it once")
        if self._has_user and "*" in before and "*" in after:
            raise ValueError(f"auth.client_ids: {pattern!r} has * on both sides of %u; write for example %u:*")
        self._before, self._after = tuple(before.split(STAR)), tuple(after.split(STAR))

    @property
    def names_user(self) -> bool:
        """Whether each client identifier belongs to a user."""
        return bool(self._has_user)

    def may_take(self, user: str, client_id: str, users: Container[str]) -> bool:
        """Whether a user may take a client identifier. `users`: names of the password file."""
        if not self._pattern:
            return True
        if not self._has_user:
            return Glob(self._before).matches(client_id)
        if not user or len(client_id) > MOST_CHARACTERS or not self._fits(user, client_id):
            return False
        if self._pattern.startswith(f"%u{SEPARATOR}") and SEPARATOR in user:
            return False
        return not any(len(each) > len(user) and self._fits(each, client_id) for each in self._others(client_id, users))

    def _fits(self, user: str, client_id: str) -> bool:
        before, after = self._before, self._after
        return Glob((*before[:-1], before[-1] + user + after[0], *after[1:])).matches(client_id)

    def _others(self, client_id: str, users: Container[str]) -> list[str]:
        """Users with a name that is in a client identifier where the pattern has %u."""
        if len(self._before) == 1 and len(self._after) > 1:  # the name is at the beginning, up to the text after it
            rest = client_id[len(self._before[0]) :]
            mark = self._after[0]
            ends = _places(rest, mark) if mark else range(1, len(rest) + 1)
            names = (rest[:end] for end in ends)
        elif len(self._before) > 1:  # at the end
            rest = client_id[: len(client_id) - len(self._after[0])]
            mark = self._before[-1]
            starts = (at + len(mark) for at in _places(rest, mark)) if mark else range(len(rest))
            names = (rest[start:] for start in starts)
        else:
            return []
        return [name for name in names if name in users]


ANY_CLIENT_ID = ClientIds("")


def _places(text: str, mark: str) -> list[int]:
    """Positions of `mark` in a text."""
    found, at = [], text.find(mark)
    while at >= 0:
        found.append(at)
        at = text.find(mark, at + 1)
    return found
