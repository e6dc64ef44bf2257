"""Users of a store (SDK, Spark, commands), authenticated and authorized by the same rules as MQTT clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gateway.auth.access import Access, Question
from gateway.auth.identity import Credentials, Identity, Verdict
from gateway.auth.left_by import left_by_client
from gateway.auth.namespaces import login_name, settled
from gateway.auth.permissions import ACTIONS, REFUSED
from notify.local.own_names import ALL, is_named
from notify.requests.permissions import ADMIN, READ_LOG, REPLAY, SUBSCRIBE
from notify.requests.users import Permission, User
from store.namespaces import is_reserved
from store.wire.handshake import NO_TOKENS, same_token
from store.wire.messages import Hello

WANTS_USER = "this store authenticates users: give user= and password="


class StoreUsers:
    """A UserJudge (notify/requests/users.py) that asks Access."""

    def __init__(self, access: Access, of_namespaces: Mapping[str, str] = NO_TOKENS) -> None:
        """`of_namespaces`: by namespace, the token that admits a client to that namespace alone."""
        self.access = access
        self._of_namespaces = of_namespaces
        self._epoch = 0
        self._waiting = 0
        self._next_s = 0.0

    @property
    def epoch(self) -> int:
        """A number that changes when answers must be asked again: after a reload; with a hook, each second."""
        if self.access.asks_elsewhere and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 1.0
            self._epoch += 1
        return self._epoch

    def replaced(self) -> None:
        """The files were read again."""
        self._epoch += 1

    def admit(self, hello: Hello, address: str, names: tuple[str, ...], answer: Callable[[User | str], None]) -> None:
        if self._waiting >= self.access.settings.max_waiting:
            answer("too many others wait for authentication")
            return
        if not is_named(hello.namespace):
            answer(f"no namespace is called {hello.namespace!r}")
            return
        self._waiting += 1
        user = hello.user or None
        password = hello.password.encode() if hello.password else None
        asked = "" if hello.namespace == ALL else hello.namespace
        login = login_name(user, asked, self.access.namespace_separator)
        credentials = Credentials(hello.name, login, password, address, names[0] if names else "", asked)

        def heard(verdict: Verdict) -> None:
            self._waiting -= 1
            if isinstance(verdict, Identity):
                answer(self._settled(verdict, hello))
            else:
                is_nobody = user is None and password is None and not names
                answer(WANTS_USER if is_nobody else "no such user, or wrong credentials")

        self.access.authenticate(credentials, heard)

    def _settled(self, identity: Identity, hello: Hello) -> StoreUser | str:
        """The user with its namespace, or why it may not use that one. A token proves a namespace, a name in a Hello
        does not.
        """
        of_token = self._of_namespaces.get(hello.namespace)
        is_of_token = of_token is not None and same_token(of_token, hello.token)
        named = (("the token", hello.namespace if is_of_token else ""),)
        found = settled(identity, named, self.access.namespace_separator)
        if not isinstance(found, Identity):
            return found.message
        if hello.namespace in ("", found.namespace) or (hello.namespace == ALL and not found.namespace):
            return StoreUser(self, found, found.namespace or hello.namespace)
        return f"it asks for the namespace {hello.namespace[:64]!r}, and is {_of(found.namespace)}"


def _of(namespace: str) -> str:
    return f"of {namespace}" if namespace else "of the default one"


class StoreUser:
    """A User (notify/requests/users.py)."""

    def __init__(self, users: StoreUsers, identity: Identity, namespace: str = "") -> None:
        """`namespace`: of its client, as in a Hello."""
        self.namespace = namespace
        self._users = users
        self._identity = identity

    @property
    def name(self) -> str:
        return self._identity.account

    @property
    def is_open(self) -> bool:
        """False in a namespace that covers all others: topics of another namespace need a rule."""
        return self.namespace != ALL and self._users.access.is_open_to(self._identity)

    @property
    def left_by(self) -> bytes:
        return left_by_client(self._users.access, self._identity)

    @property
    def epoch(self) -> int:
        return self._users.epoch

    def decide(self, wanted: Permission) -> bool | None:
        if wanted.action not in ACTIONS:
            return False
        if wanted.action in (SUBSCRIBE, REPLAY) and is_reserved(wanted.topic) and self._decided(READ_LOG):
            return True
        return self._decided(wanted)

    def _decided(self, wanted: Permission) -> bool | None:
        allowed = self._users.access.decide(self._identity, self._question(wanted))
        return None if allowed is None else allowed != REFUSED

    def ask(self, wanted: Permission, then: Callable[[bool], None]) -> None:
        self._users.access.ask(self._question(wanted), lambda allowed: then(allowed != REFUSED))

    def fault(self, now_ms: int) -> str:
        if self._identity.expires_ms is not None and now_ms >= self._identity.expires_ms:
            return "its credentials have expired"
        return "" if self._users.access.still_knows(self._identity) else "its password was changed"

    def _question(self, wanted: Permission) -> Question:
        """The question, without a client identifier: rules with %c are about MQTT clients, and allow nothing here."""
        user, namespace = self._identity.username, self._identity.namespace
        needs_rule = wanted.action in (READ_LOG.action, ADMIN.action) or (not namespace and is_reserved(wanted.topic))
        return Question(user, "", ACTIONS[wanted.action], wanted.topic, namespace, wanted.group, needs_rule)
