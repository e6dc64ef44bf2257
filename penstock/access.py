"""What clients are judged by, out of the files that [auth] names: read at the start, and again on SIGHUP."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import tomllib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.auth.access import Access, Parts
from gateway.auth.errors import AuthError
from gateway.auth.identity import Authenticator, Certificates
from gateway.auth.passwords import PasswordCheck, PasswordLine, Passwords, parse_passwords
from gateway.auth.permissions import Permissions, RuleError, parse_permissions
from gateway.auth.settings import AuthSettings, are_permissions_configured, is_auth_configured
from gateway.auth.workers import Workers
from penstock.errors import PenstockError

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Files:
    """What the files say."""

    passwords: Passwords | None = None
    permissions: Permissions | None = None


def read_files(settings: AuthSettings) -> Files:
    """Raises PenstockError, which names the file and what to do."""
    passwords, permissions = settings.password_file, settings.permissions_file
    return Files(
        None if passwords is None else read_passwords(passwords, "auth.password_file"),
        None if permissions is None else _read_permissions(permissions),
    )


def read_passwords(file: Path, setting: str) -> dict[str, PasswordLine]:
    try:
        return parse_passwords(_read(file, setting))
    except AuthError as error:
        raise PenstockError(f"{file}: {error}") from None


def _read_permissions(file: Path) -> Permissions:
    text = _read(file, "auth.permissions_file")
    try:
        return parse_permissions(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise PenstockError(f"{file}: not TOML: {error}; correct the file") from None
    except RuleError as error:
        raise PenstockError(f"{file}: line {_line_of_rule(text, error.number)}: {error}") from None
    except AuthError as error:
        raise PenstockError(f"{file}: {error}") from None


def _line_of_rule(text: str, number: int) -> int:
    """Where the nth [[rule]] begins; 1 if the rules are written in another way."""
    begins = [at for at, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*rule\s*\]\]", line)]
    return begins[number - 1] if number <= len(begins) else 1


def _read(file: Path, setting: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PenstockError(f"{file}: not UTF-8; see {setting}") from None
    except OSError as error:
        raise PenstockError(f"{file}: {error.strerror}; name a readable file with {setting}") from None


class Judging:
    """Owner of the Access of a process, and of what it needs to live: threads, connections. Reads again on SIGHUP."""

    def __init__(self, settings: AuthSettings) -> None:
        """Raises PenstockError over what is wrong in a file."""
        self._settings = settings
        self._files = read_files(settings)
        self._tell: Callable[[], object] = lambda: None
        self._reloading: asyncio.Task[None] | None = None
        self._again = False

    async def start(self, closing: AsyncExitStack) -> Access | None:
        """None: everybody may do everything."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        settings = self._settings
        if not is_auth_configured(settings):
            open_to = "everybody" if settings.allow_anonymous else "who is on this machine, and to nobody else"
            log.info("no authentication is configured: open to %s", open_to)
            if not are_permissions_configured(settings):
                return None
        self._workers = Workers(settings.password_threads, asyncio.get_running_loop())
        closing.callback(self._workers.close)
        self._access = Access(self._parts(), settings.max_waiting)
        return self._access

    def on_reload(self, tell: Callable[[], object]) -> None:
        """`tell` is called whenever what clients are judged by was replaced."""
        self._tell = tell

    def _parts(self) -> Parts:
        settings, files = self._settings, self._files
        authenticators: list[Authenticator] = []
        if settings.client_certificates:
            authenticators.append(Certificates())
        if files.passwords is not None:
            is_last = not settings.http_connect_url
            entries = settings.password_cache_entries
            authenticators.append(PasswordCheck(files.passwords, self._workers, entries, is_last))
        return Parts(
            tuple(authenticators),
            files.passwords,
            files.permissions,
            allow_anonymous=settings.allow_anonymous,
            client_ids=settings.client_ids,
        )

    # --- SIGHUP

    def _reload(self) -> None:
        """One at a time; asked again meanwhile, it is done once more."""
        if self._reloading is not None and not self._reloading.done():
            self._again = True
            return
        self._reloading = asyncio.get_running_loop().create_task(self._read_again())

    async def _read_again(self) -> None:
        """What was in force stays so if something is wrong with what is there now."""
        self._again = True
        while self._again:
            self._again = False
            try:
                files = await asyncio.get_running_loop().run_in_executor(None, partial(read_files, self._settings))
            except PenstockError as error:
                log.error("not reloaded, the old ones stay in force: %s", error)
                continue
            self._files = files
            if hasattr(self, "_access"):
                self._access.replace(self._parts())
                self._tell()
            log.info("reloaded: who may come in and do what")
