"""Users at a store: the SDK's, Spark's and the commands', judged by what judges MQTT clients."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.auth.access import Access, Question
from gateway.auth.identity import Credentials, Identity, Verdict
from gateway.auth.permissions import ACTIONS, REFUSED
from notify.users import User, Wanted
from store.wire.messages import Hello

OF_NAMESPACE = "users of a namespace come in through a gateway"
WANTS_USER = "users are judged here: give user= and password="


class StoreUsers:
    """A Judge (notify.users) that asks Access."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._epoch = 0
        self._waiting = 0
        self._next_s = 0.0

    @property
    def epoch(self) -> int:
        """What is known from elsewhere counts for a second."""
        if self.access.asks_elsewhere and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 1.0
            self._epoch += 1
        return self._epoch

    def replaced(self) -> None:
        """The files were read again."""
        self._epoch += 1

    def admit(self, hello: Hello, address: str, names: tuple[str, ...], answer: Callable[[User | str], None]) -> None:
        if self._waiting >= self.access.settings.max_waiting:
            answer("too many others wait to be judged")
            return
        self._waiting += 1
        user = hello.user or None
        password = hello.password.encode() if hello.password else None
        credentials = Credentials(hello.name, user, password, address, names[0] if names else "")

        def heard(verdict: Verdict) -> None:
            self._waiting -= 1
            if isinstance(verdict, Identity) and verdict.namespace:
                answer(OF_NAMESPACE)
            elif isinstance(verdict, Identity):
                answer(StoreUser(self, verdict))
            else:
                is_nobody = user is None and password is None and not names
                answer(WANTS_USER if is_nobody else "no such user, or not what he is known by")

        self.access.authenticate(credentials, heard)


class StoreUser:
    """A User (notify.users)."""

    def __init__(self, users: StoreUsers, identity: Identity) -> None:
        self._users = users
        self._identity = identity

    @property
    def name(self) -> str:
        return self._identity.username

    @property
    def is_open(self) -> bool:
        return self._users.access.is_open_to(self._identity)

    @property
    def epoch(self) -> int:
        return self._users.epoch

    def decide(self, wanted: Wanted) -> bool | None:
        if wanted.action not in ACTIONS:
            return True
        allowed = self._users.access.decide(self._identity, self._question(wanted))
        return None if allowed is None else allowed != REFUSED

    def ask(self, wanted: Wanted, then: Callable[[bool], None]) -> None:
        self._users.access.ask(self._question(wanted), lambda allowed: then(allowed != REFUSED))

    def fault(self, now_ms: int) -> str:
        if self._identity.expires_ms is not None and now_ms >= self._identity.expires_ms:
            return "what it showed to be let in has expired"
        return "" if self._users.access.still_knows(self._identity) else "its password was changed"

    def _question(self, wanted: Wanted) -> Question:
        """Without a client identifier: rules with %c are about MQTT clients, and allow nothing here."""
        return Question(self.name, "", ACTIONS[wanted.action], wanted.topic, group=wanted.group)
