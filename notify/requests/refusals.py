"""Refusals of a peer's requests, as errors and as codes of the wire."""

from __future__ import annotations

from notify.errors import LeaseLost, NotFollowed
from notify.local.user_quotas import QuotaExceeded
from store.errors import RecordTooLarge, StoreError, StoreFull
from store.wire.messages import FailureCode


class Fenced(StoreError):
    """Another member has the session."""

    def __init__(self, client_id: str) -> None:
        super().__init__(f"the session of client {client_id} is not this gateway's any more; claim it first")


def failure_code(error: Exception) -> FailureCode:
    """The code of the wire for an error."""
    match error:
        case StoreFull():
            return FailureCode.STORE_FULL
        case RecordTooLarge():
            return FailureCode.RECORD_TOO_LARGE
        case Fenced() | LeaseLost():
            return FailureCode.FENCED
        case NotFollowed():
            return FailureCode.NOT_PERMITTED
        case QuotaExceeded():
            return FailureCode.NOT_ALLOWED
        case ValueError():
            return FailureCode.BAD_REQUEST
    return FailureCode.UNAVAILABLE
