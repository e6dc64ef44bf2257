"""The HTTP hooks: another server says which clients may connect, and what each may do. They fail closed.

    POST {"client_id": ..., "username": ..., "password": ..., "peer": ..., "certificate": ...}
    POST {"client_id": ..., "username": ..., "action": "publish" | "retain" | "subscribe" | "replay", "topic": ...}

Both have `namespace` as well if it is not the default one.

The answer is `{"result": "allow"}`, or "deny", or (to the first) "ignore": ask the next authenticator. An "allow" to
the first may have `user`, `namespace`, `client_id` (this client identifier belongs to the user), `permissions` (rules
as in the permissions file) and `expires_at` (Unix time, s); to the second, `max_qos`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from gateway.auth.access import Allowed, Question
from gateway.auth.errors import AuthError
from gateway.auth.http import Breaker, Http
from gateway.auth.identity import Answer, Credentials, Identity, LoginRefused, Verdict, expires_ms
from gateway.auth.permissions import MAX_QOS, REFUSED, UNANSWERED, parse_own_rules
from gateway.mqtt.reason_codes import ReasonCode
from store.namespaces import is_namespace

T = TypeVar("T")
MOST_KEY_CHARACTERS = 200
"""Of a question as a key of the cache; a longer one is hashed, since clients choose the topics."""


class TimedCache(Generic[T]):
    """Answers, kept for `lasts_s` seconds; at most `entries`, the oldest go first."""

    def __init__(self, entries: int, lasts_s: float, clock: Callable[[], float]) -> None:
        self._most = entries
        self._lasts_s = lasts_s
        self._clock = clock
        self._entries: OrderedDict[object, tuple[float, T]] = OrderedDict()
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: object) -> T | None:
        found = self._entries.get(key)
        if found is None:
            return None
        if found[0] <= self._clock():
            del self._entries[key]
            return None
        self.hits += 1
        return found[1]

    def put(self, key: object, value: T) -> None:
        if self._lasts_s:
            self._entries.pop(key, None)
            self._entries[key] = (self._clock() + self._lasts_s, value)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)


class ConnectHook:
    """The connect hook, a Costly. Allowed clients are cached under a keyed hash of the credentials."""

    def __init__(self, http: Http, url: str, breaker: Breaker, cache: TimedCache[Identity], most_rules: int) -> None:
        self._http = http
        self._most_rules = most_rules
        self._url = url
        self._breaker = breaker
        self.cache = cache
        self._key = secrets.token_bytes(32)

    def recall(self, credentials: Credentials, answer: Answer) -> bool:
        known = self.cache.get(self._digest(credentials))
        if known is not None:
            answer(known)
        return known is not None

    def verify(self, credentials: Credentials, answer: Answer) -> None:
        key = self._digest(credentials)
        try:
            body = _body(credentials)
        except UnicodeDecodeError:
            answer(LoginRefused("the password is not UTF-8", is_failure=True))
            return

        def heard(found: Any) -> None:
            verdict = _verdict(found, credentials, self._most_rules)
            if isinstance(verdict, Identity):
                self.cache.put(key, verdict)
            answer(verdict)

        self._http.post(self._url, self._breaker, body, heard)

    def _digest(self, credentials: Credentials) -> bytes:
        username = None if credentials.username is None else credentials.username.encode()
        outside = (credentials.peer_identity.encode(), credentials.namespace.encode())
        return _digest(self._key, (credentials.client_id.encode(), username, credentials.password, *outside))


def _digest(key: bytes, texts: Iterable[bytes | None]) -> bytes:
    found = hashlib.blake2b(key=key, digest_size=32)
    for text in texts:
        found.update(b"\0" if text is None else len(text).to_bytes(5, "big") + text)
    return found.digest()


def _body(credentials: Credentials) -> dict[str, Any]:
    return {
        "client_id": credentials.client_id,
        "username": credentials.username,
        "password": None if credentials.password is None else credentials.password.decode(),
        "peer": credentials.peer,
        "certificate": credentials.peer_identity or None,
        **_named(credentials.namespace),
    }


def _named(namespace: str) -> dict[str, str]:
    """The namespace field; none for the default namespace."""
    return {"namespace": namespace} if namespace else {}


def _verdict(found: Any, credentials: Credentials, most_rules: int) -> Verdict:
    if found is None:
        return LoginRefused("auth.http_connect_url gave no answer", ReasonCode.SERVER_UNAVAILABLE)
    result = found.get("result")
    if result == "ignore":
        return None
    if result != "allow":
        return LoginRefused("auth.http_connect_url denies it", ReasonCode.NOT_AUTHORIZED, is_failure=True)
    user, expires_s = found.get("user", credentials.username or ""), found.get("expires_at")
    namespace = found.get("namespace", "")
    if not isinstance(namespace, str) or (namespace and not is_namespace(namespace)):
        return LoginRefused("auth.http_connect_url names no namespace", ReasonCode.SERVER_UNAVAILABLE)
    if found.get("client_id", credentials.client_id) != credentials.client_id:
        return LoginRefused(
            "auth.http_connect_url says that it has another client identifier", ReasonCode.NOT_AUTHORIZED
        )
    try:
        if not isinstance(user, str):
            raise AuthError("user: is not a string")
        rules = parse_own_rules(found["permissions"], most_rules) if "permissions" in found else None
        at_ms = None if expires_s is None else expires_ms(expires_s)
        return Identity(user, rules, at_ms, namespace=namespace, owns_client_id="client_id" in found)
    except AuthError as error:
        return LoginRefused(f"auth.http_connect_url: its answer cannot be used: {error}", ReasonCode.SERVER_UNAVAILABLE)


class PermissionHook:
    """The permission hook: asks what a client may do, topic by topic."""

    def __init__(self, http: Http, url: str, breaker: Breaker, cache: TimedCache[int]) -> None:
        self._http = http
        self._url = url
        self._breaker = breaker
        self.cache = cache
        self._key = secrets.token_bytes(32)

    def known(self, question: Question) -> int | None:
        return self.cache.get(self._key_of(question))

    def _key_of(self, question: Question) -> object:
        texts = (question.client_id, question.username, question.topic, question.namespace)
        if sum(map(len, texts)) <= MOST_KEY_CHARACTERS:
            return question
        return question.action.value, _digest(self._key, [text.encode() for text in texts])

    def ask(self, question: Question, then: Allowed) -> None:
        def heard(found: Any) -> None:
            if found is None:
                then(UNANSWERED)  # not cached, so that it is asked again
                return
            allowed = _allowed(found)
            self.cache.put(self._key_of(question), allowed)
            then(allowed)

        body = {
            "client_id": question.client_id,
            "username": question.username,
            "action": (question.action.name or "").lower(),
            "topic": question.topic,
            **_named(question.namespace),
        }
        self._http.post(self._url, self._breaker, body, heard)


def _allowed(found: dict[str, Any]) -> int:
    max_qos = found.get("max_qos", MAX_QOS)
    if found.get("result") != "allow" or type(max_qos) is not int or max_qos not in (0, 1, 2):
        return REFUSED
    return max_qos
