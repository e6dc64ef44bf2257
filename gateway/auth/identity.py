"""The credentials that a client presents, and the identity that an authenticator gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.auth.errors import AuthError
from gateway.auth.permissions import Rule
from gateway.mqtt.reason_codes import ReasonCode
from store.namespaces import MARK


class Attempt:
    """Work that waits on behalf of a connecting client, and is cancelled if the client leaves."""

    __slots__ = ("_cancel",)

    def __init__(self) -> None:
        self._cancel: Callable[[], None] | None = None

    def waits(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def abandon(self) -> bool:
        """Cancel the waiting work, because the client left or was answered. Returns whether there was any."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
        return cancel is not None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Everything known of a connecting client."""

    client_id: str
    username: str | None
    password: bytes | None
    peer: str = ""
    peer_identity: str = ""
    """The name in the client's certificate, if the listener verified one."""
    namespace: str = ""
    """The namespace that the listener or the certificate names."""
    source: str = ""
    """The unit by which its address is counted; see source_of()."""
    attempt: Attempt = field(default_factory=Attempt, compare=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """A client's user, and what the authenticator said about it."""

    username: str = ""  # empty: anonymous
    rules: tuple[Rule, ...] | None = None
    """Its own permissions, asked before those of the file; None: it has none."""
    expires_ms: int | None = None
    """Unix time at which the identity expires."""
    verifier: str = ""
    """The verifier of the password file that let it in: if the file has another one later, the client is
    disconnected.
    """
    namespace: str = ""  # empty: the default one, or none named so far
    login: str = ""  # the user's name in the password file, if different
    key: bytes = b""
    """Fingerprint of the key that signed its token: if the key is removed, the client is disconnected."""
    owns_client_id: bool = False
    """The authenticator said that the client identifier belongs to the user, so rules may use `%c`."""

    @property
    def account(self) -> str:
        """The user's name, unique among all namespaces."""
        return f"{MARK}{self.namespace}/{self.username}" if self.namespace and self.username else self.username


MOST_UNIX_TIME_S = 253_402_300_799
"""The end of the year 9999: a larger number is no time in seconds."""


def expires_ms(seconds: object, leeway_s: int = 0) -> int:
    """Convert a Unix time in s, of any JSON type, to ms. Raises AuthError unless it is a time."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MOST_UNIX_TIME_S:  # type: ignore[operator]  # false for NaN
        raise AuthError("the time at which it expires is no Unix time in seconds")
    return int((seconds + leeway_s) * 1000)  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class LoginRefused:
    """The client is refused, and no other authenticator is asked."""

    message: str
    reason_code: ReasonCode = ReasonCode.BAD_USER_NAME_OR_PASSWORD
    is_failure: bool = False
    """The client had a wrong secret, as an attacker that tries many: it counts as a failed login."""


Verdict = Identity | LoginRefused | None
"""None: this authenticator cannot say; ask the next one."""
Answer = Callable[[Verdict], None]


class Authenticator(Protocol):
    def check(self, credentials: Credentials, answer: Answer) -> None:
        """Call `answer` once, from the loop: at once, or later."""


class Certificates:
    """Accepts a verified certificate as proof of the user that it names."""

    def check(self, credentials: Credentials, answer: Answer) -> None:
        answer(Identity(credentials.peer_identity) if credentials.peer_identity else None)


UNKNOWN = LoginRefused("unknown credentials", is_failure=True)


class Chain:
    """Asks one authenticator after another, until one has a verdict."""

    def __init__(self, authenticators: list[Authenticator], allow_anonymous: bool) -> None:
        """Without authenticators every client is admitted as anonymous."""
        self._authenticators = authenticators
        self._allow_anonymous = allow_anonymous or not authenticators
        self._with_certificates = any(isinstance(each, Certificates) for each in authenticators)

    def check(self, credentials: Credentials, answer: Answer) -> None:
        certified = self._with_certificates and credentials.peer_identity
        if not self._authenticators or (
            credentials.username is None and credentials.password is None and not certified
        ):
            refusal = LoginRefused("no credentials, and auth.allow_anonymous is false", ReasonCode.NOT_AUTHORIZED)
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
