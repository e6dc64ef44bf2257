"""Which messages of a queue the store has: their ids, as they are stored in one Append with the messages.

An id is known by a digest of 16 bytes. Each Append has a message on a topic of the flow's own, whose payload is the
digests of the other messages in it. As the store has an Append as a whole or not at all, whoever reads that topic knows
which messages are there, whatever was killed in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from os import urandom
from typing import Final, Protocol

from penstock.sdk.batch import Make
from penstock.sdk.outgoing import Outgoing

DIGEST_BYTES: Final = 16
REMEMBERED: Final = 100_000
"""The newest ids that are known."""
READ_BACK: Final = 2_000
"""The newest messages of the topic that are read, each with the ids of up to an Append."""
IDS_KEY: Final = "ids"


class Noted(Protocol):
    """A message of the topic, as the SDK has it."""

    @property
    def payload(self) -> bytes: ...


Find = Callable[[str, str, int], Awaitable[Sequence[Noted]]]
"""The newest messages with a key on a topic, so many at most, the newest first."""


class KnownIds:
    """Owner of the digests that are known."""

    def __init__(self, topic: str, make: Make, find: Find) -> None:
        self.topic = topic
        self._make, self._find = make, find
        self._known: dict[bytes, None] = {}  # the newest last

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def note(self, digests: Iterable[bytes]) -> None:
        """The store has them."""
        for digest in digests:
            self._known.pop(digest, None)
            self._known[digest] = None
        for digest in list(islice(self._known, max(0, len(self._known) - REMEMBERED))):
            del self._known[digest]

    def message(self, digests: Iterable[bytes]) -> Outgoing:
        """What is stored with the messages that have these digests."""
        return self._make(self.topic, b"".join(digests), {"key": IDS_KEY})

    def mark(self) -> tuple[Outgoing, bytes]:
        """A message by itself, and its payload: whoever finds it finds everything that was stored before."""
        payload = urandom(DIGEST_BYTES)
        return self._make(self.topic, payload, {"key": IDS_KEY}), payload

    async def learn(self, mark: bytes) -> bool:
        """Read what the store has. False: it does not show the mark yet. Raises ClientError."""
        found = await self._find(IDS_KEY, self.topic, READ_BACK)
        if not any(each.payload == mark for each in found):
            return False
        digests: list[bytes] = []
        for each in found:
            payload = each.payload
            digests += [payload[at : at + DIGEST_BYTES] for at in range(0, len(payload), DIGEST_BYTES)]
            if len(digests) >= REMEMBERED:
                break
        self.note(reversed(digests))
        return True
