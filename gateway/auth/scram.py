"""The enhanced authentication method SCRAM-SHA-256 (RFC 5802, RFC 7677), an exchange of two steps. No I/O.

The client proves that it knows the password without sending it, and learns that the server knows it, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from gateway.auth.errors import AuthError

if TYPE_CHECKING:  # imported when needed: a tenth of a gateway's start, and few gateways use it
    from scramp import ScramMechanism
    from scramp.core import ScramServer

METHOD = "SCRAM-SHA-256"
ITERATIONS = 4_096
MOST_BYTES = 4_096
"""Of one message of a client."""


@cache
def _mechanism() -> ScramMechanism:
    from scramp import ScramMechanism

    return ScramMechanism(METHOD)


class ScramFailed(Exception):
    """The client did not prove that it knows the password."""


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """A verifier in PostgreSQL's text form: `SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY`."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str) -> ScramVerifier:
        salt, stored_key, server_key, iterations = _mechanism().make_auth_info(password, iteration_count=ITERATIONS)
        return cls(iterations, salt, stored_key, server_key)

    @classmethod
    def parse(cls, text: str) -> ScramVerifier:
        """Raises AuthError."""
        try:
            _, count_and_salt, keys = text.split("$")
            count, salt = count_and_salt.split(":")
            stored_key, server_key = (base64.b64decode(key, validate=True) for key in keys.split(":"))
            verifier = cls(int(count), base64.b64decode(salt, validate=True), stored_key, server_key)
        except (ValueError, binascii.Error):
            raise AuthError("the SCRAM-SHA-256 verifier is damaged; set the password again") from None
        if len(stored_key) != 32 or len(server_key) != 32 or verifier.iterations < 1 or not verifier.salt:
            raise AuthError("the SCRAM-SHA-256 verifier is damaged; set the password again")
        return verifier

    def text(self) -> str:
        salt, stored_key, server_key = (
            base64.b64encode(each).decode() for each in (self.salt, self.stored_key, self.server_key)
        )
        return f"{METHOD}${self.iterations}:{salt}${stored_key}:{server_key}"


class FakeVerifiers:
    """Verifiers for unknown users: no password fits, and their challenge looks like that of a known user.

    Salt and iterations of a name are the same each time, at each gateway with the same password file, and have the
    length and number of a real user's.
    """

    def __init__(self, verifiers: Iterable[str], secret: str) -> None:
        """`verifiers`: those of the file, at least one; `secret`: known only to readers of the file."""
        shapes = Counter(_shape(verifier) for verifier in verifiers)
        self._users = shapes.total()
        names = sorted(shapes)
        self._shapes = list(zip(names, accumulate(shapes[shape] for shape in names), strict=True))
        self._key = hashlib.blake2b(secret.encode(), person=b"penstock-scram").digest()

    def of(self, username: str) -> ScramVerifier:
        chosen = hmac.digest(self._key, username.encode(), hashlib.sha256)
        place = int.from_bytes(chosen[:8], "big") * self._users >> 64
        iterations, salt_bytes = next(shape for shape, before in self._shapes if place < before)
        salt = hashlib.shake_256(chosen).digest(salt_bytes)
        return ScramVerifier(iterations, salt, secrets.token_bytes(32), secrets.token_bytes(32))


def _shape(verifier: str) -> tuple[int, int]:
    """(iterations, bytes of the salt) of a verifier as text."""
    count, _, salt = verifier.split("$")[1].partition(":")
    return int(count), len(base64.b64decode(salt))


class ScramExchange:
    """One client's exchange: first(), then final(). Both raise ScramFailed."""

    def __init__(self, verifier_of: Callable[[str], str], fakes: FakeVerifiers) -> None:
        """`verifier_of` returns a user's SCRAM verifier, or an empty text."""
        self._verifier_of = verifier_of
        self._fakes = fakes
        self._server: ScramServer = _mechanism().make_server(self._auth_info)
        self._is_known = False
        self.username = ""
        self.verifier = ""

    def _auth_info(self, username: str) -> tuple[bytes, bytes, bytes, int]:
        self.username = username
        self.verifier = self._verifier_of(username)
        self._is_known = bool(self.verifier)
        known = ScramVerifier.parse(self.verifier) if self._is_known else self._fakes.of(username)
        return known.salt, known.stored_key, known.server_key, known.iterations

    def first(self, message: bytes) -> bytes:
        """The server's answer to the client's first message."""
        from scramp import ScramException

        try:
            self._server.set_client_first(_text(message))
            return str(self._server.get_server_first()).encode()
        except (ScramException, ValueError) as error:
            raise ScramFailed(f"SCRAM: {error}") from None

    def final(self, message: bytes) -> bytes:
        """The server's proof, in answer to the client's."""
        from scramp import ScramException

        try:
            self._server.set_client_final(_text(message))
            proof = str(self._server.get_server_final())
        except (ScramException, ValueError) as error:
            raise ScramFailed(f"SCRAM: {error}") from None
        if not self._is_known or proof.startswith("e="):
            raise ScramFailed("SCRAM: no such user")
        return proof.encode()


def _text(message: bytes) -> str:
    if len(message) > MOST_BYTES:
        raise ScramFailed(f"SCRAM: a message of more than {MOST_BYTES} bytes")
    return message.decode()
