"""Why an operator's request was not carried out."""

from penstock.errors import PenstockError


class OperatorError(PenstockError):
    """Base of the errors of the operator's connection."""


class StoreUnavailable(OperatorError):
    """There is no connection, or no answer in time. The request may have been carried out."""


class OperatorRefused(OperatorError):
    """The store does not carry it out. `code` is a FailureCode of the wire."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class TooManyRequests(OperatorError):
    """More requests wait for answers than the connection allows."""


class StoreTooOld(OperatorError):
    """The store does not know this request; upgrade it."""
