"""The password file: one line per user, `NAME:VERIFIER` or `NAME:VERIFIER VERIFIER`. It holds no passwords.

    sensor-1:$argon2id$v=19$m=19456,t=2,p=1$...
    alice:$argon2id$... SCRAM-SHA-256$4096:SALT$STORED_KEY:SERVER_KEY

Empty lines and lines that begin with # are ignored. The second kind of verifier is for the authentication method of
that name; see scram.py.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from gateway.auth.errors import AuthError
from gateway.auth.identity import Answer, Credentials, Identity, LoginRefused
from gateway.auth.scram import FakeVerifiers, ScramVerifier
from gateway.auth.workers import Workers

HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1, type=Type.ID)
"""The minimum that OWASP recommends: some 20 ms, so that ten thousand devices may reconnect."""
MOST_NAME_BYTES = 65_535


@dataclass(frozen=True, slots=True)
class PasswordLine:
    """The verifiers of one user."""

    argon2: str = ""
    scram: str = ""

    def text(self, username: str) -> str:
        return f"{username}:{' '.join(verifier for verifier in (self.argon2, self.scram) if verifier)}"


Passwords = Mapping[str, PasswordLine]


class PasswordTable(dict[str, PasswordLine]):
    """The file's lines by user, and fake verifiers for unknown users."""

    fakes: FakeVerifiers | None = None
    """None: no line has a SCRAM verifier."""

    def make_fakes(self) -> None:
        """Make the fakes. Their secret is the first line with a SCRAM verifier: all copies of the file have it, and it
        stays.
        """
        lines = [line for line in self.values() if line.scram]
        if lines:
            self.fakes = FakeVerifiers((line.scram for line in lines), lines[0].text(""))


def hashed(password: str) -> str:
    """An argon2id verifier for a new password."""
    return HASHER.hash(password)


def check_name(username: str) -> None:
    """Raise AuthError unless the file can hold this name."""
    if not username or set(username) & set(":\n\r\0") or username.startswith("#") or username != username.strip():
        raise AuthError(f"{username!r}: a user's name is not empty and has no colon, no # or space at its ends")
    if len(username.encode()) > MOST_NAME_BYTES:
        raise AuthError(f"a user's name has at most {MOST_NAME_BYTES} bytes")


def parse_passwords(text: str) -> PasswordTable:
    """Parse the file. Raises AuthError, whose message begins with the wrong line's number."""
    found = PasswordTable()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        username, colon, verifiers = line.partition(":")
        try:
            if not colon:
                raise AuthError("is not NAME:VERIFIER; `penstock passwd` writes such lines")
            check_name(username)
            if username in found:
                raise AuthError(f"{username!r} has a line above already")
            found[username] = _parse_verifiers(verifiers)
        except AuthError as error:
            raise AuthError(f"line {number}: {error}") from None
    found.make_fakes()
    return found


def _parse_verifiers(text: str) -> PasswordLine:
    argon2 = scram = ""
    for verifier in text.split():
        if verifier.startswith("$argon2id$") and not argon2:
            try:
                extract_parameters(verifier)
            except InvalidHashError:
                raise AuthError("the argon2id verifier is damaged; set the password again") from None
            argon2 = verifier
        elif verifier.startswith("SCRAM-SHA-256$") and not scram:
            ScramVerifier.parse(verifier)
            scram = verifier
        else:
            raise AuthError("holds something that is no argon2id or SCRAM-SHA-256 verifier; set the password again")
    if not argon2 and not scram:
        raise AuthError("has no verifier; set the password with `penstock passwd`")
    return PasswordLine(argon2, scram)


class Remembered:
    """Verified passwords, as keyed hashes of verifier and password: a changed verifier does not match."""

    def __init__(self, entries: int) -> None:
        self._most = entries
        self._key = secrets.token_bytes(32)  # so the hashes are worthless outside this process
        self._verified: OrderedDict[str, bytes] = OrderedDict()

    def has(self, username: str, verifier: str, password: bytes) -> bool:
        remembered = self._verified.get(username)
        if remembered is None or not hmac.compare_digest(remembered, self._digest(verifier, password)):
            return False
        self._verified.move_to_end(username)
        return True

    def add(self, username: str, verifier: str, password: bytes) -> None:
        if self._most:
            self._verified[username] = self._digest(verifier, password)
            self._verified.move_to_end(username)
            if len(self._verified) > self._most:
                self._verified.popitem(last=False)

    def _digest(self, verifier: str, password: bytes) -> bytes:
        return hashlib.blake2b(verifier.encode() + b"\0" + password, key=self._key, digest_size=32).digest()


class PasswordCheck:
    """Checks passwords of CONNECT against the file, a Costly: verifies in threads, and caches verified passwords."""

    def __init__(self, passwords: Passwords, workers: Workers, remembered: Remembered, is_last: bool) -> None:
        """`is_last`: no later authenticator can know an unknown user, so that one costs as much time as a known one."""
        self.passwords = passwords
        self._workers = workers
        self._remembered = remembered
        self._is_last = is_last

    def recall(self, credentials: Credentials, answer: Answer) -> bool:
        username, password = credentials.username or "", credentials.password or b""
        verifier = self._verifier(username)
        if verifier and self._remembered.has(username, verifier, password):
            answer(Identity(username, verifier=verifier))
            return True
        if not verifier and not self._is_last:
            answer(None)
            return True
        return False

    def verify(self, credentials: Credentials, answer: Answer) -> None:
        username, password = credentials.username or "", credentials.password or b""
        verifier = self._verifier(username)

        def heard(is_right: bool) -> None:
            if not verifier:
                answer(None)
            elif is_right:
                self._remembered.add(username, verifier, password)
                answer(Identity(username, verifier=verifier))
            else:
                answer(LoginRefused(f"wrong password of user {username}", is_failure=True))

        self._workers.do(lambda: _verify(verifier or _nobodys(), password)(), heard)

    def knows(self, username: str) -> bool:
        """Whether a user has a password to verify."""
        return bool(self._verifier(username))

    def pretend(self, credentials: Credentials, then: Callable[[], None]) -> None:
        """Take as long as verify() does, without effect."""
        self._workers.do(lambda: _verify(_nobodys(), credentials.password or b"")(), lambda _: then())

    def _verifier(self, username: str) -> str:
        """The user's argon2id verifier; empty: there is none."""
        line = self.passwords.get(username)
        return line.argon2 if line is not None else ""


@cache
def _nobodys() -> str:
    """A verifier for unknown users, so that the time of an answer does not reveal which users exist."""
    return HASHER.hash(secrets.token_hex())


def _verify(verifier: str, password: bytes) -> Callable[[], bool]:
    def work() -> bool:
        try:
            return HASHER.verify(verifier, password)
        except (VerificationError, InvalidHashError):
            return False

    return work
