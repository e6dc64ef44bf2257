"""Owners of sessions: the user who opened one owns it (docs/adr/0030). Claims of others are refused at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple


class Claimant(NamedTuple):
    """The user on whose behalf a gateway claims a session; the fields are those of store.wire's Claim."""

    user: str | None = None  # empty: an anonymous client; None: a gateway that is older than ownership
    reads_all: bool = False
    reads: Collection[str] = ()
    adopts_anonymous: bool = False
    address: str = ""
    counts: bool = False


class ClaimDenied(NamedTuple):
    """A claim is refused: another user owns the session; or its owner is not known, and it holds these filters.

    Or it is new, and the user has too many: `quota` says so.
    """

    filters: tuple[str, ...] = ()
    quota: str = ""


UNJUDGED = Claimant()
"""Of a gateway that is older than ownership."""


def refusal(claimant: Claimant, owner: str | None, filters: Iterable[str]) -> ClaimDenied | None:
    """The refusal of a claim to a session of `owner` (None: not known), with these filters; None: it is granted."""
    if claimant.user is None or claimant.user == owner:
        return None
    if owner or (owner is not None and not claimant.adopts_anonymous):
        return ClaimDenied()
    held = tuple(filters)
    if claimant.reads_all or set(claimant.reads).issuperset(held):
        return None
    return ClaimDenied(held)
