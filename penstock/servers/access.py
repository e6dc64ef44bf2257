"""Builds the Access of a process from the settings and their files: at the start, and again on SIGHUP."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.auth.access import NO_REQUESTS, Access, AccessParts, PermissionSource
from gateway.auth.attempts import Attempts
from gateway.auth.client_ids import ClientIds
from gateway.auth.early import EarlyLogins
from gateway.auth.fair_queue import FairQueue
from gateway.auth.identity import Authenticator, Certificates, LoginRefused
from gateway.auth.limited import Limited
from gateway.auth.passwords import PasswordCheck, Remembered
from gateway.auth.settings import AuthSettings, are_permissions_configured, is_auth_configured
from gateway.auth.workers import FairWorkers, Workers
from gateway.mqtt.reason_codes import ReasonCode
from penstock.config.auth_files import Files, read_files
from penstock.config.watched_files import WatchedFiles
from penstock.errors import PenstockError
from store.audit import Audit, AuditEvent

if TYPE_CHECKING:  # imported only by a process that has these settings: their imports take time
    from gateway.auth.http import Breaker, Http
    from gateway.auth.tokens import FetchedKeys

log = logging.getLogger("penstock")
T = TypeVar("T")

KEYS_TICK_S = 1.0
SWITCH_S = 0.001
"""How long a thread that reads files may keep the loop from running Python."""


class AccessLoader:
    """Owner of a process's Access, and of the threads and connections that it needs. Reads the files again on
    SIGHUP.
    """

    def __init__(self, settings: AuthSettings) -> None:
        """Raises PenstockError for a wrong file."""
        self._settings = settings
        try:
            self._client_ids = ClientIds(settings.client_ids)
        except ValueError as error:
            raise PenstockError(str(error)) from None
        secrets = (settings.password_file, settings.jwt_secret_file, settings.http_header_file)
        self._watched = WatchedFiles((*secrets, settings.permissions_file, settings.jwt_keys_file))
        self._files = read_files(settings)
        self._access: Access | None = None
        self._audit = Audit()  # start() has the process's
        self._workers: Workers
        self._token_keys: Callable[[], frozenset[bytes]] = frozenset
        self._attempts: Attempts
        self._passwords: FairQueue
        self._early: FairQueue
        self._hooks: FairQueue
        self._remembered: Remembered
        self._http: Http | None = None
        self._fetched: FetchedKeys | None = None
        self._tell: Callable[[], object] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_reloading = False
        self._again = False

    @property
    def _asks_http(self) -> bool:
        settings = self._settings
        return bool(settings.jwt_keys_url or settings.http_connect_url or settings.http_permission_url)

    def load(self) -> None:
        """Import the modules of start(), which takes 0.25 s: before a store waits for this process."""
        if self._asks_http:
            from gateway.auth import hook, http, tokens  # noqa: F401

    def start(self, closing: AsyncExitStack, audit: Audit) -> Access | None:
        """Build the Access; call it in the loop. From now on reloads are audited. None: clients may do everything."""
        self._audit = audit
        loop = asyncio.get_running_loop()
        settings = self._settings
        if not is_auth_configured(settings) and not are_permissions_configured(settings):
            return None
        self._workers = Workers(settings.password_threads, loop)
        closing.callback(self._workers.close)
        if self._asks_http:
            self._start_http(closing)
        closing.callback(self._cancel)
        self._attempts = Attempts(settings, loop.time, loop.call_soon)
        self._passwords = FairQueue(settings.password_threads, loop.call_soon)
        self._early = FairQueue(1, loop.call_soon)
        self._hooks = FairQueue(settings.http_connections, loop.call_soon)
        self._remembered = Remembered(settings.password_cache_entries)
        self._access = Access(self._parts(), settings, self._attempts)
        self._say_what_is_unbound()
        return self._access

    def on_reload(self, tell: Callable[[], object]) -> None:
        """`tell` is called after each reload of the rules."""
        self._tell = tell

    def _start_http(self, closing: AsyncExitStack) -> None:
        from gateway.auth.http import Http
        from gateway.auth.tokens import FetchedKeys

        self._http = http = Http(self._settings, self._files.header)
        closing.push_async_callback(http.close)
        if self._settings.jwt_keys_url:
            get = partial(http.get, self._settings.jwt_keys_url)
            clock = asyncio.get_running_loop().time
            self._fetched = FetchedKeys(get, clock, self._settings.jwt_keys_refresh_s, lambda: self._tell())
            self._start(self._fetch_now_and_then(self._fetched))

    async def _fetch_now_and_then(self, keys: FetchedKeys) -> None:
        fault = ""
        while True:
            keys.tick()
            if keys.fault != fault:
                fault = keys.fault
                log.log(logging.ERROR if fault else logging.INFO, "auth.jwt_keys_url: %s", fault or "has keys")
            await asyncio.sleep(KEYS_TICK_S)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    # --- building

    def _parts(self) -> AccessParts:
        settings, files = self._settings, self._files
        authenticators = self._authenticators(files)
        return AccessParts(
            tuple(authenticators),
            files.passwords,
            files.permissions,
            self._permission_hook(),
            allow_anonymous=settings.allow_anonymous,
            client_ids=self._client_ids,
            namespace_separator=settings.namespace_separator,
            asks_again_s=settings.http_cache_s,
            requests=self._http.counts if self._http is not None else lambda: NO_REQUESTS,
            token_keys=self._token_keys,
        )

    def _authenticators(self, files: Files) -> list[Authenticator]:
        """The authenticators in the order in which they are asked."""
        settings = self._settings
        self._token_keys = frozenset
        found: list[Authenticator] = []
        if settings.client_certificates:
            found.append(Certificates())
        if files.keys is not None or self._fetched is not None:
            from gateway.auth.tokens import TokenCheck

            workers = FairWorkers(self._workers, self._passwords, self._attempts.is_slow)
            tokens = TokenCheck(settings, files.keys or (), self._fetched, workers)
            self._token_keys = tokens.key_fingerprints
            found.append(tokens)
        if files.passwords is not None:
            is_last = not settings.http_connect_url
            passwords = PasswordCheck(files.passwords, self._workers, self._remembered, is_last)
            early = EarlyLogins(passwords, self._attempts, self._passwords, self._early)
            found.append(Limited(passwords, self._attempts, self._passwords, early=early))
        if settings.http_connect_url and self._http is not None:
            from gateway.auth.hook import ConnectHook, TimedCache

            cache = TimedCache[Any](settings.http_cache_entries, settings.http_cache_s, self._clock)
            most_rules = settings.max_client_rules
            hook = ConnectHook(self._http, settings.http_connect_url, self._breaker(), cache, most_rules)
            full = LoginRefused(
                "auth.http_connect_url gave no answer: too many requests wait", ReasonCode.SERVER_UNAVAILABLE
            )
            found.append(Limited(hook, self._attempts, self._hooks, settings.http_max_waiting, full))
        return found

    def _say_what_is_unbound(self) -> None:
        if self._files.unbound:
            log.warning(
                "%s: rule %s: `clients` does not identify a client, as each may take any client identifier; name "
                'users instead, or set auth.client_ids = "%%u-*"',
                self._settings.permissions_file,
                ", ".join(map(str, self._files.unbound[:10])),
            )

    def _permission_hook(self) -> PermissionSource | None:
        settings = self._settings
        if not settings.http_permission_url or self._http is None:
            return None
        from gateway.auth.hook import PermissionHook, TimedCache

        cache = TimedCache[Any](settings.http_cache_entries, settings.http_cache_s, self._clock)
        return PermissionHook(self._http, settings.http_permission_url, self._breaker(), cache)

    def _breaker(self) -> Breaker:
        from gateway.auth.http import Breaker

        return Breaker(self._settings.http_breaker_failures, self._settings.http_breaker_pause_ms / 1000)

    @property
    def _clock(self) -> Callable[[], float]:
        return asyncio.get_running_loop().time

    # --- reloading

    def tick(self) -> None:
        """Reload if a file has changed; call it several times a second."""
        if not self._is_reloading and self._watched.have_changed():
            self.reload()

    def reload(self) -> None:
        """Start a reload. A call during a reload causes one more after it."""
        self._again = True
        if not self._is_reloading:
            self._is_reloading = True
            self._start(self._read_again())

    async def _read_again(self) -> None:
        """Read the files in a thread. If one is wrong, the old rules stay in force."""
        while self._again:
            self._again = False
            self._watched.note()
            try:
                new = await _in_thread(read_files, self._settings, True)
            except PenstockError as error:
                log.error("not reloaded, the old ones stay in force: %s", error)
                self._audit.note(AuditEvent.RELOAD_FAILED, reason=str(error))
                continue
            if not self._watched.are_as_noted():
                log.warning("not reloaded, the old ones stay in force: a file was written to while it was read")
                continue  # it is read again once it no longer changes
            old, self._files = [self._files], new
            self._use()
            await _in_thread(old.clear)  # freeing 100,000 users takes time, too
        self._is_reloading = False

    def _use(self) -> None:
        if self._access is not None:
            if self._fetched is not None:
                self._fetched.fetch()
            if self._http is not None:
                self._http.header = self._files.header
            self._access.replace(self._parts())
            self._say_what_is_unbound()
            self._tell()
        log.info("reloaded: authentication and permissions")
        self._audit.note(AuditEvent.RELOADED, reason="authentication and permissions")


async def _in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Run Python work in a thread, with a short switch interval so that the loop keeps running."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    finally:
        sys.setswitchinterval(before_s)
