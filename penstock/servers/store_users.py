"""Users of a store (SDK, Spark, commands), authenticated and authorized by the same rules as MQTT clients."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from gateway.auth.access import Access, Question
from gateway.auth.bans import Bans
from gateway.auth.errors import AuthError
from gateway.auth.identity import Credentials, Identity, LoginRefused, Verdict
from gateway.auth.left_by import left_by_client
from gateway.auth.namespaces import login_name, settled
from gateway.auth.permissions import ACTIONS, UNANSWERED
from gateway.auth.sources import source_of
from gateway.mqtt.reason_codes import ReasonCode
from notify.limits import info_of
from notify.local.own_names import ALL, is_named
from notify.requests.permissions import OF_THE_STORE, READ_LOG, REPLAY, SUBSCRIBE
from notify.requests.users import Origin, Permission, User
from notify.server.server import StoreServer
from store.audit import host_of
from store.namespaces import Namespace, is_reserved
from store.wire.handshake import NO_TOKENS, same_token
from store.wire.messages import Hello, Refused, RefusedReason
from store.wire.operator_messages import BansTold

WANTS_USER = "this store authenticates users: give user= and password="
UNKNOWN_USER = "no such user, or wrong credentials"


class StoreUsers:
    """A UserJudge (notify/requests/users.py) that asks Access, and that knows the store's bans."""

    def __init__(
        self,
        access: Access | None,
        of_namespaces: Mapping[str, str] = NO_TOKENS,
        bans: Bans | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`access` None: users are not judged. `of_namespaces`: by namespace, the token that admits a client to that
        namespace alone. `now_ms`: by the store's clock.
        """
        self._access = access
        self.bans = bans if bans is not None else Bans()
        self._now_ms = now_ms
        self._of_namespaces = of_namespaces
        self._epoch = 0
        self._waiting: Counter[str] = Counter()  # by source; all of them by ALL
        self._next_s = 0.0

    @classmethod
    def at(cls, server: StoreServer, access: Access | None, of_namespaces: Mapping[str, str] = NO_TOKENS) -> StoreUsers:
        """Have the clients of a server judged, and refused or sent away while they are banned."""
        kept = server.hub.bans
        bans = Bans(lambda ban: kept.made(ban.kind, ban.value, ban.until_ms or 0, ban.reason))
        bans.take([info_of(state) for state in kept.in_force()], ())

        def told(change: BansTold) -> None:
            try:
                bans.take(change.bans, change.lifted)
            except AuthError as error:
                server.events.error("ban", "a ban is not in force at the store's port: %s", error)
            if change.bans:
                server.bans_were_set()

        kept.watch(told)
        server.judge = users = cls(access, of_namespaces, bans, server.hub.messages.now_ms)
        return users

    @property
    def access(self) -> Access:
        assert self._access is not None
        return self._access

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

    def admit(self, hello: Hello, origin: Origin, answer: Callable[[User | Refused | None], None]) -> None:
        refused = self._refused_unheard(hello, origin)
        if refused is not None or self._access is None:
            answer(refused)
            return
        source, names = source_of(host_of(origin.address)), origin.names
        if why := self._why_not_wait(source):
            answer(Refused(RefusedReason.BUSY, why))
            return
        self._waiting.update((ALL, source))
        user, password = hello.user or None, hello.password.encode() if hello.password else None
        asked = _named(hello)
        login = login_name(user, asked, self.access.namespace_separator)
        named = names[0] if names else ""
        credentials = Credentials(hello.name, login, password, origin.address, named, asked, source)

        def heard(verdict: Verdict) -> None:
            self._ends(source)
            self._count(source, login or "", verdict)
            found = self._settled(verdict, hello) if isinstance(verdict, Identity) else ""
            if isinstance(found, StoreUser):
                why = self.banned(origin, found.name)
                answer(Refused(RefusedReason.BANNED, why) if why else found)
            elif isinstance(verdict, LoginRefused) and verdict.reason_code is ReasonCode.CONNECTION_RATE_EXCEEDED:
                again_s = self.access.attempts.retry_s(source, login or "")
                answer(Refused(RefusedReason.LIMITED, verdict.message, again_s))
            else:
                is_nobody = user is None and password is None and not names
                answer(Refused(RefusedReason.USER, found or (WANTS_USER if is_nobody else UNKNOWN_USER)))

        self.access.authenticate(credentials, heard)

    def _refused_unheard(self, hello: Hello, origin: Origin) -> Refused | None:
        """The refusal of a client whose password is not looked at."""
        if not is_named(hello.namespace):
            return Refused(RefusedReason.USER, f"no namespace is called {hello.namespace!r}")
        why = self.banned(origin, Namespace(_named(hello)).client_id(hello.user) if hello.user else "", counts=True)
        return Refused(RefusedReason.BANNED, why) if why else None

    def banned(self, origin: Origin, account: str, counts: bool = False) -> str:
        """`counts`: a client is refused because of it."""
        find = self.bans.refuses if counts else self.bans.find
        for address in filter(None, (origin.address, origin.claimed)):
            ban = find(host_of(address), account, "", self._now_ms())
            if ban is not None:
                return f"{ban.kind} {ban.value} is banned" + (f": {ban.reason}" if ban.reason else "")
        return ""

    def _why_not_wait(self, source: str) -> str:
        """Why no further client may wait for authentication; empty if one may."""
        settings = self.access.settings
        if self._waiting[ALL] >= settings.max_waiting:
            return "too many others wait for authentication"
        is_full = source and self._waiting[source] >= settings.max_waiting_per_address
        return "too many others at its address wait for authentication" if is_full else ""

    def _ends(self, source: str) -> None:
        self._waiting.subtract((ALL, source))
        if not self._waiting[source]:
            del self._waiting[source]

    def _count(self, source: str, login: str, verdict: Verdict) -> None:
        """Note that a client was right or wrong; an address from which too many were is banned."""
        settings = self.access.settings
        if self.access.attempts.note(source, login, verdict):
            until_ms = self._now_ms() + settings.ban_s * 1000
            self.bans.ban("address", source, until_ms, f"{settings.ban_failures} failed logins", automatic=True)

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


def _named(hello: Hello) -> str:
    """The namespace that a Hello names; empty for all."""
    return "" if hello.namespace == ALL else hello.namespace


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

    @property
    def asks_again_s(self) -> int:
        return self._users.access.asks_again_s

    def filters(self) -> Iterator[str]:
        return self._users.access.subscribable(self._identity)

    def decide(self, wanted: Permission) -> bool | None:
        if wanted.action not in ACTIONS:
            return False
        if wanted.action in (SUBSCRIBE, REPLAY) and is_reserved(wanted.topic) and self._decided(READ_LOG):
            return True
        return self._decided(wanted)

    def _decided(self, wanted: Permission) -> bool | None:
        allowed = self._users.access.decide(self._identity, self._question(wanted))
        return None if allowed is None else allowed >= 0

    def ask(self, wanted: Permission, then: Callable[[bool | None], None]) -> None:
        def heard(allowed: int) -> None:
            then(None if allowed == UNANSWERED else allowed >= 0)

        self._users.access.ask(self._question(wanted), heard)

    def fault(self, now_ms: int) -> str:
        if self._identity.expires_ms is not None and now_ms >= self._identity.expires_ms:
            return "its credentials have expired"
        return "" if self._users.access.still_knows(self._identity) else "its password was changed"

    def _question(self, wanted: Permission) -> Question:
        """The question, without a client identifier: rules with %c are about MQTT clients, and allow nothing here."""
        user, namespace = self._identity.username, self._identity.namespace
        needs_rule = wanted.action in OF_THE_STORE or (not namespace and is_reserved(wanted.topic))
        return Question(user, "", ACTIONS[wanted.action], wanted.topic, namespace, wanted.group, needs_rule)
