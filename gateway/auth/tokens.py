"""JSON Web Tokens as passwords. The key determines the algorithms; a token's `alg` is only compared with them.

So no key accepts a token signed by HMAC with an RSA key's public text as its secret, or an unsigned one.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from gateway.auth.errors import AuthError
from gateway.auth.identity import Answer, Credentials, Identity, LoginRefused, Verdict, expires_ms
from gateway.auth.permissions import parse_own_rules
from gateway.auth.settings import AuthSettings
from gateway.auth.workers import FairWorkers
from store.namespaces import NAME_SHAPE, is_namespace

HMAC = ("HS256", "HS384", "HS512")
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
OF_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512", "secp256k1": "ES256K"}
LEAST_SECRET_BYTES = 32
LEAST_RSA_BITS = 2_048
MOST_KEYS = 1_000
MOST_TRIES = 4
"""Keys tried on a token without a key identifier."""
MOST_AT_ONCE_BYTES = 2_048
"""Of a token signed by a secret; a longer one is verified in a thread, since parsing its JSON takes long."""
MOST_HEADER_BYTES = 8_192
"""Of a token's first part, which is parsed again for each key that is tried."""
TOKEN = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Key:
    value: Any
    algorithms: tuple[str, ...]
    key_id: str | None = None
    fingerprint: bytes = field(default=b"", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", _fingerprint(self.value))


Keys = tuple[Key, ...]
_PROCESS_KEY = secrets.token_bytes(32)


def _fingerprint(value: Any) -> bytes:
    """A key's fingerprint; that of a secret is worthless outside this process."""
    if not isinstance(value, bytes):
        value = value.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.blake2b(value, key=_PROCESS_KEY, digest_size=16).digest()


def secret_key(secret: bytes) -> Key:
    """An HMAC key. Raises AuthError."""
    if len(secret) < LEAST_SECRET_BYTES:
        raise AuthError(f"a secret of {len(secret)} bytes can be guessed; use {LEAST_SECRET_BYTES} at least")
    return Key(secret, HMAC)


def parse_keys(text: str) -> Keys:
    """Public keys as a JWKS, or one or several in PEM. Raises AuthError."""
    if text.lstrip().startswith("{"):
        try:
            return parse_jwks(json.loads(text), with_secrets=True)
        except json.JSONDecodeError as error:
            raise AuthError(f"not JSON: line {error.lineno}: {error.msg}") from None
    keys = tuple(_parse_pem(found[0], found[1]) for found in PEM.finditer(text))
    if not keys:
        raise AuthError("holds neither a JWKS nor a public key in PEM")
    return keys


def _parse_pem(text: str, kind: str) -> Key:
    if "PRIVATE" in kind:
        raise AuthError("holds a private key, which does not belong here; put the public one in its place")
    try:
        data = text.encode()
        is_certificate = kind == "CERTIFICATE"
        value = x509.load_pem_x509_certificate(data).public_key() if is_certificate else load_pem_public_key(data)
    except ValueError as error:
        raise AuthError(f"a damaged {kind}: {error}") from None
    return Key(value, _algorithms(value))


def _algorithms(value: object) -> tuple[str, ...]:
    if isinstance(value, rsa.RSAPublicKey):
        if value.key_size < LEAST_RSA_BITS:
            raise AuthError(f"an RSA key of {value.key_size} bits is too short; use {LEAST_RSA_BITS} at least")
        return RSA
    if isinstance(value, ec.EllipticCurvePublicKey) and value.curve.name in OF_CURVE:
        return (OF_CURVE[value.curve.name],)
    if isinstance(value, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return ("EdDSA",)
    if isinstance(value, bytes):
        return HMAC
    raise AuthError("a kind of key that verifies no token")


def parse_jwks(document: object, with_secrets: bool) -> Keys:
    """The keys of a JWKS; keys for other purposes, or of unknown kinds, are skipped. Raises AuthError if none
    is left.
    """
    found = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(found, list) or len(found) > MOST_KEYS:
        raise AuthError(f"is no JWKS: an object with `keys`, a list of at most {MOST_KEYS}")
    keys = tuple(key for each in found if (key := _parse_jwk(each, with_secrets)) is not None)
    if not keys:
        raise AuthError("the JWKS has no key that can verify a token")
    return keys


def _parse_jwk(document: object, with_secrets: bool) -> Key | None:
    if not isinstance(document, dict) or document.get("use", "sig") != "sig":
        return None
    try:
        value = jwt.PyJWK.from_dict(document, algorithm=document.get("alg") or _usual(document)).key
        if not isinstance(value, bytes) and hasattr(value, "private_bytes"):
            value = value.public_key()
        algorithms = _algorithms(value)
    except (jwt.PyJWTError, AuthError, ValueError, TypeError, KeyError, OverflowError):
        return None
    if isinstance(value, bytes) and (not with_secrets or len(value) < LEAST_SECRET_BYTES):
        return None
    if "alg" in document:
        algorithms = tuple(name for name in algorithms if name == document["alg"])
    return Key(value, algorithms, document.get("kid")) if algorithms else None


def _usual(document: Mapping[str, Any]) -> str | None:
    """The algorithm to name to PyJWT, which needs one for some kinds; the usable ones come from the key itself."""
    return {"RSA": "RS256", "oct": "HS256", "OKP": "EdDSA"}.get(str(document.get("kty")))


class UnknownKey(Exception):
    """No known key has signed this token."""


class KeySource(Protocol):
    """Keys that may change."""

    @property
    def keys(self) -> Keys: ...

    def refresh(self, then: Callable[[], None]) -> None:
        """Look for new keys, unless that was done just now, and call `then`."""


class TokenCheck:
    """Checks tokens. A password that looks like a token counts as one, and no other authenticator is asked about it.

    Verifying a signature by a private key takes up to milliseconds (ES512, for each key that fits), so it is done in
    threads in a fair queue, as with passwords. HMACs of short tokens take microseconds.
    """

    def __init__(
        self, settings: AuthSettings, keys: Iterable[Key], source: KeySource | None, workers: FairWorkers | None = None
    ) -> None:
        """Without `workers` every token is verified at once, in the loop."""
        self._workers = workers
        self._settings = settings
        self._keys = tuple(keys)
        self._source = source
        self._fingerprinted: tuple[Keys | None, frozenset[bytes]] = (None, frozenset())

    def check(self, credentials: Credentials, answer: Answer) -> None:
        token = credentials.password or b""
        if TOKEN.fullmatch(token) and token.index(b".") > MOST_HEADER_BYTES:
            answer(LoginRefused(f"token: its header has more than {MOST_HEADER_BYTES} bytes"))
        elif TOKEN.fullmatch(token):
            self._do(credentials, lambda verdict: self._heard(verdict, credentials, answer))
        else:
            answer(None)

    def _heard(self, verdict: Verdict, credentials: Credentials, answer: Answer) -> None:
        """Answer, or refresh the keys and try again: `verdict` None means that no known key has signed the token."""
        if verdict is not None:
            answer(verdict)
            return
        refused = LoginRefused("token: signed by none of the known keys", is_failure=True)
        if self._source is None:
            answer(refused)
            return
        self._source.refresh(lambda: self._do(credentials, lambda verdict: answer(verdict or refused)))

    def _do(self, credentials: Credentials, then: Callable[[Verdict], None]) -> None:
        token = credentials.password or b""
        if self._workers is None or (len(token) <= MOST_AT_ONCE_BYTES and _is_hmac(token)):
            then(self._verdict_or_none(token, credentials))
        else:
            self._workers.do(credentials, lambda: self._verdict_or_none(token, credentials), then)

    def key_fingerprints(self) -> frozenset[bytes]:
        """Fingerprints of all keys that count now."""
        fetched = self._source.keys if self._source is not None else ()
        if fetched is not self._fingerprinted[0]:
            self._fingerprinted = fetched, frozenset(key.fingerprint for key in self._known)
        return self._fingerprinted[1]

    @property
    def _known(self) -> Keys:
        return self._keys + (self._source.keys if self._source is not None else ())

    def _verdict_or_none(self, token: bytes, credentials: Credentials) -> Verdict:
        try:
            return self._verdict(token, credentials)
        except UnknownKey:
            return None

    def _verdict(self, token: bytes, credentials: Credentials) -> Verdict:
        """Raises UnknownKey."""
        try:
            claims, key = self._claims(token)
            identity = self._identity(claims, credentials)
            return replace(identity, username=self._prefix_of(key) + identity.username, key=key.fingerprint)
        except jwt.PyJWTError as error:
            return LoginRefused(f"token: {error}")
        except (AuthError, ValueError, TypeError, OverflowError, RecursionError) as error:
            return LoginRefused(f"token: {error}")

    def _prefix_of(self, key: Key) -> str:
        """The prefix of names in a key's tokens. A fetched key is not one of the file's, also once it is gone."""
        is_of_file = any(key is each for each in self._keys)
        return "" if is_of_file else self._settings.jwt_keys_url_prefix

    def _claims(self, token: bytes) -> tuple[dict[str, Any], Key]:
        """The claims of a token, and the key that signed it. Raises UnknownKey."""
        header = jwt.get_unverified_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        fitting = [
            key
            for key in self._known
            if algorithm in key.algorithms and (key_id is None or key.key_id is None or key.key_id == key_id)
        ]
        for key in fitting[:MOST_TRIES]:
            try:
                return self._decode(token, key, str(algorithm)), key
            except jwt.InvalidSignatureError:
                continue
        raise UnknownKey

    def _decode(self, token: bytes, key: Key, algorithm: str) -> dict[str, Any]:
        settings = self._settings
        claims: dict[str, Any] = jwt.decode(
            token,
            key.value,
            algorithms=[algorithm],
            audience=settings.jwt_audience or None,
            issuer=settings.jwt_issuer or None,
            leeway=settings.jwt_leeway_s,
            options={"verify_aud": bool(settings.jwt_audience), "verify_sub": False, "verify_jti": False},
        )
        return claims

    def _identity(self, claims: Mapping[str, Any], credentials: Credentials) -> Identity:
        settings = self._settings
        user = claims.get(settings.jwt_user_claim)
        if not isinstance(user, str) or not user:
            raise AuthError(f"its claim {settings.jwt_user_claim} names no user")
        client_claim = settings.jwt_client_id_claim
        if client_claim and client_claim in claims and claims[client_claim] != credentials.client_id:
            raise AuthError(f"is for another client identifier ({client_claim})")
        permissions = settings.jwt_permissions_claim
        if "exp" not in claims and settings.jwt_require_exp:
            raise AuthError("has no `exp`, so it would never expire (auth.jwt_require_exp)")
        rules = parse_own_rules(claims[permissions], settings.max_client_rules) if permissions in claims else None
        at_ms = expires_ms(claims["exp"], settings.jwt_leeway_s) if "exp" in claims else None
        owns_client_id = bool(client_claim) and client_claim in claims
        return Identity(user, rules, at_ms, namespace=self._namespace(claims), owns_client_id=owns_client_id)

    def _namespace(self, claims: Mapping[str, Any]) -> str:
        """The namespace in the token; empty if it names none. Raises AuthError."""
        claim = self._settings.jwt_namespace_claim
        if not claim or claim not in claims:
            return ""
        namespace = claims[claim]
        if not isinstance(namespace, str) or not is_namespace(namespace):
            raise AuthError(f"its claim {claim} names no namespace: {NAME_SHAPE}")
        return namespace


def _is_hmac(token: bytes) -> bool:
    try:
        return jwt.get_unverified_header(token).get("alg") in HMAC
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return True  # an invalid token has no signature that takes long


def _keys_or_fault(document: object) -> Keys | str:
    """The keys of a JWKS, or the fault in it."""
    try:
        return parse_jwks(document, with_secrets=False)
    except AuthError as error:
        return str(error)


class FetchedKeys:
    """The JWKS at an address: fetched at the start, at intervals, and when a token names an unknown key."""

    AGAIN_S = 10.0
    """Seconds between two fetches because of an unknown key, at least."""

    def __init__(
        self,
        get: Callable[[Callable[[Any], object], Callable[[Any], None]], None],
        clock: Callable[[], float],
        refresh_s: float,
        dropped: Callable[[], object] = lambda: None,
    ) -> None:
        """`get(read, then)` fetches the document and calls `then` with the result of `read`, run in a thread; None if
        that fails. `dropped` is called when a key is gone: clients that it let in are judged again.
        """
        self._get = get
        self._clock = clock
        self._refresh_s = refresh_s
        self._dropped = dropped
        self._fetched_s = -1e9
        self._waiting: list[Callable[[], None]] = []
        self._is_fetching = False
        self.fault = ""
        self.keys: Keys = ()

    def refresh(self, then: Callable[[], None]) -> None:
        if self._is_fetching:
            self._waiting.append(then)
        elif self._clock() - self._fetched_s < self.AGAIN_S:
            then()
        else:
            self._waiting.append(then)
            self.fetch()

    def tick(self) -> None:
        """Fetch again if it is time; call it now and then."""
        if not self._is_fetching and self._clock() - self._fetched_s >= self._refresh_s:
            self.fetch()

    def fetch(self) -> None:
        self._is_fetching = True
        self._fetched_s = self._clock()
        self._get(_keys_or_fault, self._got)

    def _got(self, found: Keys | str | None) -> None:
        """Use the fetched keys. After a failed fetch the old ones stay."""
        self._is_fetching = False
        self.fault = "could not be fetched" if found is None else found if isinstance(found, str) else ""
        if isinstance(found, tuple):
            before, self.keys = self.keys, found
            if {key.fingerprint for key in before} - {key.fingerprint for key in found}:
                self._dropped()
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()
