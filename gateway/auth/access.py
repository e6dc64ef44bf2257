"""What clients are judged by: who may come in, and what each may do. A reload replaces it as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from gateway.auth.attempts import Attempts
from gateway.auth.identity import Answer, Authenticator, Chain, Credentials, Identity
from gateway.auth.passwords import PasswordTable
from gateway.auth.permissions import MAX_QOS, REFUSED, Action, Permissions, Rule, decide
from gateway.auth.scram import ScramExchange
from gateway.auth.settings import AuthSettings

REMEMBERED_CLIENTS = 16_384
"""For how many clients it is known which rules of the file are for them."""
NO_REQUESTS: Mapping[str, int] = {"sent": 0, "failed": 0, "spared": 0}
Allowed = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Question:
    """May this client do that?"""

    username: str
    client_id: str
    action: Action
    topic: str
    """A topic name, or with SUBSCRIBE a topic filter."""
    namespace: str = ""
    """In which these names are the client's."""


class PermissionSource(Protocol):
    """Somebody elsewhere who knows what the rules leave open."""

    def known(self, question: Question) -> int | None:
        """The highest QoS that is allowed, or REFUSED; None: it has to be asked."""

    def ask(self, question: Question, then: Allowed) -> None:
        """Call `then` once, from the loop."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the settings and their files come to."""

    authenticators: tuple[Authenticator, ...] = ()
    passwords: PasswordTable | None = None
    permissions: Permissions | None = None  # None: there is no file
    source: PermissionSource | None = None
    allow_anonymous: bool = False
    client_ids: str = ""
    namespace_separator: str = ""
    requests: Callable[[], Mapping[str, int]] = lambda: NO_REQUESTS


class Access:
    """Answers from its parts."""

    def __init__(self, parts: Parts, settings: AuthSettings, attempts: Attempts) -> None:
        self.settings = settings
        self.attempts = attempts
        self._use(parts)

    def _use(self, parts: Parts) -> None:
        self._parts = parts
        self._chain = Chain(list(parts.authenticators), parts.allow_anonymous)
        self._rules_for = lru_cache(REMEMBERED_CLIENTS)((parts.permissions or Permissions()).rules_for)

    def replace(self, parts: Parts) -> None:
        """From now on these count. Who was judged by the old ones is to be judged again."""
        self._use(parts)

    @property
    def requests(self) -> Mapping[str, int]:
        return self._parts.requests()

    # --- who may come in

    def authenticate(self, credentials: Credentials, answer: Answer) -> None:
        self._chain.check(credentials, answer)

    def exchange(self, method: str) -> ScramExchange | None:
        """For enhanced authentication; None if there is no such method here."""
        passwords = self._parts.passwords
        if method != "SCRAM-SHA-256" or passwords is None or passwords.fakes is None:
            return None
        return ScramExchange(lambda user: passwords[user].scram if user in passwords else "", passwords.fakes)

    @property
    def namespace_separator(self) -> str:
        """What stands between a namespace and the name of a user; empty: no user name names a namespace."""
        return self._parts.namespace_separator

    def still_knows(self, identity: Identity) -> bool:
        """Whether the password by which a client was let in is its user's password still."""
        if not identity.verifier:
            return True
        line = (self._parts.passwords or PasswordTable()).get(identity.login or identity.username)
        return line is not None and identity.verifier in (line.argon2, line.scram)

    def may_be_called(self, identity: Identity, client_id: str) -> bool:
        """Whether a user may have this client identifier."""
        pattern = self._parts.client_ids
        if not pattern:
            return True
        if "%u" in pattern and not identity.username:
            return False
        name = _as_text(pattern, identity.username)
        return re.fullmatch(name, client_id, re.DOTALL) is not None

    # --- what it may do

    @property
    def asks_elsewhere(self) -> bool:
        """Whether there are answers that count for a while only."""
        return self._parts.source is not None

    def is_open_to(self, identity: Identity) -> bool:
        """Whether a client may do everything, so that nobody need be asked."""
        return identity.rules is None and self._parts.permissions is None and self._parts.source is None

    def decide(self, identity: Identity, question: Question) -> int | None:
        """The highest QoS that is allowed, or REFUSED; None: ask()."""
        if self.is_open_to(identity):
            return MAX_QOS
        username, client_id = question.username, question.client_id
        for rules in (identity.rules or (), self._of_file(username, client_id, question.namespace)):
            allowed = decide(rules, username, client_id, question.action, question.topic, question.namespace)
            if allowed is not None:
                return allowed
        if self._parts.source is not None:
            return self._parts.source.known(question)
        return self._parts.permissions.default if self._parts.permissions is not None else REFUSED

    def _of_file(self, username: str, client_id: str, namespace: str) -> tuple[Rule, ...]:
        return self._rules_for(username, client_id, namespace) if self._parts.permissions is not None else ()

    def ask(self, question: Question, then: Allowed) -> None:
        """What decide() could not say. If that source is gone by now, it is refused."""
        if self._parts.source is None:
            then(REFUSED)
        else:
            self._parts.source.ask(question, then)


def _as_text(pattern: str, username: str) -> str:
    """A regular expression for `pattern`, in which %u is this name, whatever is in it, and * any characters."""
    parts = (re.escape(part).replace(r"\*", ".*") for part in pattern.split("%u"))
    return re.escape(username).join(parts)
