"""Errors of a client. Each message says what to do."""

from collections.abc import Sequence

from penstock.errors import PenstockError


class ClientError(PenstockError):
    """Base of every error of the client."""


class AddressError(ClientError, ValueError):
    """The address of the store makes no sense."""


class CannotConnect(ClientError):
    """No store answers at the address, or it does not let this client in (`is_refusal`)."""

    def __init__(self, message: str, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


class ClientClosed(ClientError):
    """The client is not connected any more, or not yet."""

    def __init__(self) -> None:
        super().__init__(
            "the client is not open; use it inside `async with Client(...)` (or `with`), or after connect()"
        )


class OfParentProcess(ClientError):
    """Begun before os.fork(), and used after it: the connection is the parent's."""

    def __init__(self) -> None:
        super().__init__(
            "this was begun by the process that forked this one, which goes on with it; begin it anew here"
        )


class ConnectionLost(ClientError):
    """The connection ended; another one is being made."""


class TimedOut(ClientError):
    """The store did not answer in time."""


class Overloaded(ClientError):
    """More is sent than the store can take, and the program awaits no receipt."""


class StoreRefused(ClientError):
    """The store understood, and will not or cannot do it. `code` is that of the wire protocol."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"the store refused: {message} ({code})")


class NotPermitted(StoreRefused):
    """The user may not do that: `action` (publish, retain, subscribe, replay) with `topic`, a topic or a filter."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, f"this user may not {message}")
        self.action, _, self.topic = message.partition(" ")


class BadMessage(ClientError, ValueError):
    """A message that cannot be published."""


class BatchRefused(BadMessage):
    """Messages that cannot be one batch."""


class NotAllStored(ClientError):
    """Some of many messages were not stored. `outcomes`: of each, in their order, its receipt, or the error."""

    def __init__(self, outcomes: Sequence[object]) -> None:
        self.outcomes = list(outcomes)
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        super().__init__(f"{len(errors)} of {len(outcomes)} messages were not stored, the first because: {errors[0]}")


class Unreadable(ClientError):
    """A payload that was stored compressed and cannot be decompressed, or not here."""


class BadPosition(ClientError, ValueError):
    """A place to read from that cannot be understood."""


class BadOption(ClientError, ValueError):
    """Something else that was asked for and makes no sense."""


class AlreadySettled(ClientError):
    """A message of a group was acknowledged, rejected or given back before."""

    def __init__(self) -> None:
        super().__init__("this message is settled already: say ack(), retry() or reject() once")


class NotFound(ClientError, LookupError):
    """There is no such message (any more)."""


class BadMessageId(ClientError, ValueError):
    """No message id, one that was tampered with, or one of another store."""
