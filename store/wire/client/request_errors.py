"""The exceptions that a user of the client gets for a request without the expected answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from store.errors import RequestRefused, StoreAway, WireError
from store.wire.base import WireMessage
from store.wire.messages import Failed

OfCode = Callable[[str, str], Exception]
"""Makes an exception of a FailureCode and the store's text."""

M = TypeVar("M", bound=WireMessage)


@dataclass(frozen=True, slots=True)
class RequestErrors:
    """The exceptions of one user of the client.

    `by_code` has those of single FailureCodes, `refused` the one of all others. `timed_out`: no answer came in time.
    `lost`: the connection ended, and the request has a meaning on that connection only.
    """

    refused: OfCode = RequestRefused
    by_code: Mapping[str, OfCode] = field(default_factory=dict)
    timed_out: Callable[[str], Exception] = StoreAway
    lost: Callable[[str], Exception] = StoreAway

    def of_code(self, code: str, message: str) -> Exception:
        """The exception of a refusal."""
        return self.by_code.get(code, self.refused)(code, message)

    def of(self, answer: Failed) -> Exception:
        """The exception of an answer that refuses a request."""
        return self.of_code(answer.code, answer.message)

    def checked(self, answer: WireMessage, kind: type[M]) -> M:
        """The answer, if it is of this kind. Raises the exception of a refusal, or WireError."""
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Failed):
            raise self.of(answer)
        raise WireError(f"the store answered with {type(answer).__name__}")
