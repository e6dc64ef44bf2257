"""What can go wrong for somebody who asks the console. Each error names the thing and the remedy."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import PenstockError

NO_HEADERS: Mapping[str, str] = {}


class ConsoleError(PenstockError):
    """Base of the console's errors."""


class NotAdmitted(ConsoleError):
    """The store does not let this user in. `reason`: a RefusedReason; `retry_s`: when it may, if the store says so."""

    def __init__(self, message: str, reason: str = "", retry_s: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_s = retry_s


class NoStoreAnswers(ConsoleError):
    """No store answers at the address of the console's store."""


class TooManyUsers(ConsoleError):
    """All connections to the store are in use."""


class Problem(ConsoleError):
    """The answer to a request that fails: problem details (RFC 9457) with the remedy.

    `kind`: a word for programs, with hyphens; it ends the URN that is the problem's type.
    """

    def __init__(
        self, status: int, kind: str, detail: str, remedy: str, headers: Mapping[str, str] = NO_HEADERS, **more: object
    ) -> None:
        super().__init__(f"{detail}; {remedy}")
        self.status = status
        self.kind = kind
        self.detail = detail
        self.remedy = remedy
        self.headers = headers
        self.more = more
        """Further members of the answer."""
