"""The current authentication and permission rules. A reload replaces them as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from gateway.auth.attempts import Attempts
from gateway.auth.client_ids import ANY_CLIENT_ID, ClientIds
from gateway.auth.identity import Answer, Authenticator, Chain, Credentials, Identity
from gateway.auth.passwords import PasswordTable
from gateway.auth.permissions import MAX_QOS, REFUSED, Action, Permissions, Rule, decide, name_groups
from gateway.auth.placeholders import FilledLevels
from gateway.auth.scram import ScramExchange
from gateway.auth.settings import AuthSettings
from gateway.auth.topic_patterns import unwrapped

REMEMBERED_CLIENTS = 16_384
"""Clients for which the matching rules of the permissions file are cached."""
REMEMBERED_CHARACTERS = 512
"""Of a client's user name and client identifier together; for longer ones nothing is cached."""
NO_REQUESTS: Mapping[str, int] = {"sent": 0, "failed": 0, "spared": 0}
Allowed = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Question:
    """A permission question: may this client do this action with this topic?"""

    username: str
    client_id: str
    action: Action
    topic: str
    """A topic name, or with SUBSCRIBE, REPLAY and READ_LOG a topic filter."""
    namespace: str = ""
    """The namespace of the names above."""
    group: str | None = None
    """The share name of a shared subscription."""
    needs_rule: bool = False
    """A default is not enough, nor a server without rules: a rule or a hook's answer has to allow it."""


class PermissionSource(Protocol):
    """Another server that decides what the rules leave open."""

    def known(self, question: Question) -> int | None:
        """The highest allowed QoS, or REFUSED; None: call ask()."""

    def ask(self, question: Question, then: Allowed) -> None:
        """Ask, and call `then` once, from the loop."""


@dataclass(frozen=True, slots=True)
class AccessParts:
    """Everything that is made from the settings and the files they name."""

    authenticators: tuple[Authenticator, ...] = ()
    passwords: PasswordTable | None = None
    permissions: Permissions | None = None  # None: there is no file
    source: PermissionSource | None = None
    allow_anonymous: bool = False
    client_ids: ClientIds = ANY_CLIENT_ID
    namespace_separator: str = ""
    asks_again_s: int = 0  # seconds for which answers of `source` count
    requests: Callable[[], Mapping[str, int]] = lambda: NO_REQUESTS
    token_keys: Callable[[], frozenset[bytes]] = frozenset  # fingerprints of the keys that count now


class Access:
    """Answers authentication and permission questions from its current parts."""

    def __init__(self, parts: AccessParts, settings: AuthSettings, attempts: Attempts) -> None:
        self.settings = settings
        self.attempts = attempts
        self._use(parts)

    def _use(self, parts: AccessParts) -> None:
        self._parts = parts
        self._chain = Chain(list(parts.authenticators), parts.allow_anonymous)
        self._rules_for = lru_cache(REMEMBERED_CLIENTS)((parts.permissions or Permissions()).rules_for)

    def replace(self, parts: AccessParts) -> None:
        """Use new parts from now on. The caller has connected clients judged again."""
        self._use(parts)

    @property
    def requests(self) -> Mapping[str, int]:
        return self._parts.requests()

    # --- authentication

    @property
    def refuses_anonymous(self) -> bool:
        """Whether a client without credentials is refused."""
        return bool(self._parts.authenticators) and not self._parts.allow_anonymous

    def authenticate(self, credentials: Credentials, answer: Answer) -> None:
        self._chain.check(credentials, answer)

    def exchange(self, method: str) -> ScramExchange | None:
        """The SCRAM exchange for enhanced authentication; None if the server does not support the method."""
        passwords = self._parts.passwords
        if method != "SCRAM-SHA-256" or passwords is None or passwords.fakes is None:
            return None
        return ScramExchange(lambda user: passwords[user].scram if user in passwords else "", passwords.fakes)

    @property
    def namespace_separator(self) -> str:
        """The separator between namespace and user in a user name; empty: user names have no namespace."""
        return self._parts.namespace_separator

    def still_knows(self, identity: Identity) -> bool:
        """Whether a client's password verifier, and the key that signed its token, are still in use."""
        if identity.key and identity.key not in self._parts.token_keys():
            return False
        if not identity.verifier:
            return True
        line = (self._parts.passwords or PasswordTable()).get(identity.login or identity.username)
        return line is not None and identity.verifier in (line.argon2, line.scram)

    def has_still(self, login: str | None, key: bytes) -> bool:
        """Whether a user (None: it has no password) is in the password file, and the key of its token (if any) is still
        used.
        """
        has_user = login is None or login in (self._parts.passwords or ())
        return has_user and (not key or key in self._parts.token_keys())

    def may_be_called(self, identity: Identity, client_id: str) -> bool:
        """Whether a user may have this client identifier."""
        return self._parts.client_ids.may_take(identity.username, client_id, self._parts.passwords or ())

    def needs_client_id(self, identity: Identity) -> bool:
        """Whether a client's rules use `%c` although it may take any other client's identifier."""
        if identity.owns_client_id or self._parts.client_ids.names_user:
            return False
        permissions = self._parts.permissions
        return (permissions is not None and permissions.names_client_id) or any(
            rule.names_client_id for rule in identity.rules or ()
        )

    # --- authorization

    @property
    def knows_users(self) -> bool:
        """Whether clients authenticate; otherwise all are anonymous."""
        return bool(self._parts.authenticators)

    @property
    def asks_elsewhere(self) -> bool:
        """Whether another server decides, whose answers count for a limited time only."""
        return self._parts.source is not None

    @property
    def asks_again_s(self) -> int:
        """Seconds for which such answers count; 0: there are none."""
        return max(1, self._parts.asks_again_s) if self.asks_elsewhere else 0

    def is_open_to(self, identity: Identity) -> bool:
        """Whether a client may do everything, so that no question is needed."""
        return identity.rules is None and self._parts.permissions is None and self._parts.source is None

    def decide(self, identity: Identity, question: Question) -> int | None:
        """The highest allowed QoS, or REFUSED; None: call ask()."""
        if self.is_open_to(identity):
            return REFUSED if question.needs_rule else MAX_QOS
        username, client_id = question.username, question.client_id
        permissions, namespace = self._parts.permissions, question.namespace
        names_groups = permissions is not None and permissions.names_groups
        for rules in (identity.rules or (), self._of_file(username, client_id, namespace)):
            group = question.group if names_groups or name_groups(rules) else None
            allowed = decide(rules, username, client_id, question.action, question.topic, namespace, group)
            if allowed is not None:
                return allowed
        if self._parts.source is not None:
            return self._parts.source.known(_for_others(question))
        return permissions.default if permissions is not None and not question.needs_rule else REFUSED

    def by_own_rules(self, identity: Identity, question: Question) -> bool:
        """Whether rules of the client itself (from its token or the hook) decide."""
        username, client_id, namespace = question.username, question.client_id, question.namespace
        rules = identity.rules or ()
        return decide(rules, username, client_id, question.action, question.topic, namespace, None) is not None

    def subscribable(self, identity: Identity) -> Iterator[str]:
        """Topic filters of the rules that allow a user without a client identifier to subscribe. Whether a filter is
        allowed as a whole is for decide(): another rule may come before.
        """
        username, namespace = identity.username, identity.namespace
        names = FilledLevels(username, "")
        for rule in (*(identity.rules or ()), *self._of_file(username, "", namespace)):
            if rule.max_qos != REFUSED and Action.SUBSCRIBE in rule.actions and rule.is_for(username, "", namespace):
                found = (pattern.filled(names, denies=False) for pattern in rule.topics)
                yield from (each.text for each in found if each is not None)

    def _of_file(self, username: str, client_id: str, namespace: str) -> tuple[Rule, ...]:
        permissions = self._parts.permissions
        if permissions is None:
            return ()
        if len(username) + len(client_id) > REMEMBERED_CHARACTERS:
            return permissions.rules_for(username, client_id, namespace)
        return self._rules_for(username, client_id, namespace)

    def ask(self, question: Question, then: Allowed) -> None:
        """Ask the other server about a question that decide() left open. Without one the answer is REFUSED."""
        if self._parts.source is None:
            then(REFUSED)
        else:
            self._parts.source.ask(_for_others(question), then)


def _for_others(question: Question) -> Question:
    """The question for the other server: about the inner topic, and without a group."""
    return replace(question, topic=unwrapped(question.topic), group=None)
