"""Who a client says it is, and who it is found to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.auth.errors import AuthError
from gateway.auth.permissions import Rule
from gateway.mqtt.reason_codes import ReasonCode
from store.namespaces import MARK


class Attempt:
    """What waits on behalf of a client that wants to come in; nobody needs it once the client has left."""

    __slots__ = ("_cancel",)

    def __init__(self) -> None:
        self._cancel: Callable[[], None] | None = None

    def waits(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def abandon(self) -> bool:
        """The client left, or is answered. Whether something waited."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
        return cancel is not None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is known of a client that wants to come in."""

    client_id: str
    username: str | None
    password: bytes | None
    peer: str = ""
    peer_identity: str = ""
    """Whom the client's certificate names, where the listener verified one."""
    namespace: str = ""
    """That which the listener or the certificate names."""
    source: str = ""
    """What its address is counted by; see source_of()."""
    attempt: Attempt = field(default_factory=Attempt, compare=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is, and what was learnt of it on that occasion."""

    username: str = ""  # empty: nobody in particular
    rules: tuple[Rule, ...] | None = None
    """Its own permissions, asked before those of the file; None: it brought none."""
    expires_ms: int | None = None
    """Unix time at which this is not true any more."""
    verifier: str = ""
    """By which line of the password file it was let in: if that is another one later, it has to go."""
    namespace: str = ""  # empty: the default one, or none is named so far
    login: str = ""  # what the password file calls the user, if that is another name
    key: bytes = b""
    """Fingerprint of the key that its token is signed by: once that is gone, it has to go too."""
    owns_client_id: bool = False
    """What let it in says that this client identifier is its own, so that rules may say `%c`."""

    @property
    def account(self) -> str:
        """The user among those of all namespaces."""
        return f"{MARK}{self.namespace}/{self.username}" if self.namespace and self.username else self.username


MOST_UNIX_TIME_S = 253_402_300_799
"""The end of the year 9999: a larger number is no time in seconds."""


def expires_ms(seconds: object, leeway_s: int = 0) -> int:
    """A Unix time in s, of any type that JSON has, as one in ms. Raises AuthError unless it is a time."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MOST_UNIX_TIME_S:  # type: ignore[operator]  # false for NaN
        raise AuthError("the time at which it expires is no Unix time in seconds")
    return int((seconds + leeway_s) * 1000)  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Refused:
    """Not this client, and nobody else is to be asked."""

    message: str
    reason_code: ReasonCode = ReasonCode.BAD_USER_NAME_OR_PASSWORD
    is_failure: bool = False
    """It was wrong about a secret, as somebody is who tries many."""


Verdict = Identity | Refused | None
"""None: this is not for me to say; ask the next one."""
Answer = Callable[[Verdict], None]


class Authenticator(Protocol):
    def check(self, credentials: Credentials, answer: Answer) -> None:
        """Call `answer` once, from the loop: at once, or later."""


class Certificates:
    """A verified certificate speaks for the user whom it names."""

    def check(self, credentials: Credentials, answer: Answer) -> None:
        answer(Identity(credentials.peer_identity) if credentials.peer_identity else None)


UNKNOWN = Refused("nobody knows these credentials", is_failure=True)


class Chain:
    """Asks one authenticator after another, until one knows."""

    def __init__(self, authenticators: list[Authenticator], allow_anonymous: bool) -> None:
        """Without authenticators everybody comes in, as nobody in particular."""
        self._authenticators = authenticators
        self._allow_anonymous = allow_anonymous or not authenticators
        self._with_certificates = any(isinstance(each, Certificates) for each in authenticators)

    def check(self, credentials: Credentials, answer: Answer) -> None:
        certified = self._with_certificates and credentials.peer_identity
        if not self._authenticators or (
            credentials.username is None and credentials.password is None and not certified
        ):
            refusal = Refused("no credentials, and auth.allow_anonymous is false", ReasonCode.NOT_AUTHORIZED)
            answer(Identity() if self._allow_anonymous else refusal)
            return
        self._ask(0, credentials, answer)

    def _ask(self, number: int, credentials: Credentials, answer: Answer) -> None:
        if number == len(self._authenticators):
            answer(UNKNOWN)
            return

        def heard(verdict: Verdict) -> None:
            if verdict is None:
                self._ask(number + 1, credentials, answer)
            else:
                answer(verdict)

        self._authenticators[number].check(credentials, heard)
