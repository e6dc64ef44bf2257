"""The files that [auth] names, read as a whole. Each error is one line that names the file and the remedy."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gateway.auth.errors import AuthError
from gateway.auth.passwords import PasswordTable, parse_passwords
from gateway.auth.permissions import Permissions, RuleError, check_client_ids, parse_permissions
from gateway.auth.settings import AuthSettings, are_client_ids_bound
from penstock.config.secret_files import check_secret, check_unchanged_by_others, read_file
from penstock.errors import PenstockError

if TYPE_CHECKING:  # imported late: it takes time, and only tokens need it
    from gateway.auth.tokens import Keys

T = TypeVar("T")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]+)")


@dataclass(frozen=True, slots=True)
class Files:
    """The contents of the files; None where no file is configured."""

    passwords: PasswordTable | None
    permissions: Permissions | None
    keys: Keys | None
    header: tuple[str, str] | None
    unbound: tuple[int, ...] = ()
    """Numbers of the rules that name client identifiers although each client may choose any."""


def read_files(settings: AuthSettings, again: bool = False) -> Files:
    """Raises PenstockError; `again`, also over a password file that looks as if it were still being written."""
    keys: Keys = ()
    if settings.jwt_secret_file is not None:
        from gateway.auth.tokens import secret_key

        check_secret(settings.jwt_secret_file)
        secret = _read(settings.jwt_secret_file, "auth.jwt_secret_file").strip().encode()
        keys += (_parsed(settings.jwt_secret_file, "auth.jwt_secret_file", lambda _: secret_key(secret)),)
    if settings.jwt_keys_file is not None:
        from gateway.auth.tokens import parse_keys

        check_unchanged_by_others(settings.jwt_keys_file)
        keys += _parsed(settings.jwt_keys_file, "auth.jwt_keys_file", parse_keys)
    password_file, header_file = settings.password_file, settings.http_header_file
    for secret_file in (password_file, header_file):
        if secret_file is not None:
            check_secret(secret_file)
    permissions = None
    if settings.permissions_file is not None:
        permissions = _read_permissions(settings.permissions_file, settings)
    is_bound = permissions is None or are_client_ids_bound(settings)
    rules = () if permissions is None or is_bound else permissions.rules
    return Files(
        None if password_file is None else read_passwords(password_file, "auth.password_file", again),
        permissions,
        keys or None,
        None if header_file is None else _parsed(header_file, "auth.http_header_file", _parse_header),
        tuple(number for number, rule in enumerate(rules, 1) if rule.clients is not None),
    )


def read_passwords(file: Path, setting: str, is_whole: bool = False) -> PasswordTable:
    """Raises PenstockError; `is_whole`, also if the last line has no end: a cut verifier looks like any other."""

    def parse(text: str) -> PasswordTable:
        if is_whole and not text.endswith("\n"):
            raise AuthError("the last line is incomplete, perhaps still being written; end it with a newline")
        return parse_passwords(text)

    return _parsed(file, setting, parse)


def _parsed(file: Path, setting: str, parse: Callable[[str], T]) -> T:
    text = _read(file, setting)
    try:
        return parse(text)
    except AuthError as error:
        raise PenstockError(f"{file}: {error}") from None


def _parse_header(text: str) -> tuple[str, str]:
    found = HEADER.fullmatch(text.strip())
    if found is None:
        raise AuthError("is not one header line, such as `Authorization: Bearer ...`")
    return found[1], found[2]


def _read_permissions(file: Path, settings: AuthSettings) -> Permissions:
    check_unchanged_by_others(file)
    text = _read(file, "auth.permissions_file")
    try:
        permissions = parse_permissions(tomllib.loads(text))
        check_client_ids(permissions, are_client_ids_bound(settings))
        return permissions
    except tomllib.TOMLDecodeError as error:
        raise PenstockError(f"{file}: not TOML: {error}; correct the file") from None
    except RuleError as error:
        raise PenstockError(f"{file}: line {_line_of_rule(text, error.number)}: {error}") from None
    except AuthError as error:
        raise PenstockError(f"{file}: {error}") from None


def _line_of_rule(text: str, number: int) -> int:
    """The line of the nth [[rule]]; 1 if the rules are written in another way."""
    begins = [at for at, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*rule\s*\]\]", line)]
    return begins[number - 1] if number <= len(begins) else 1


def _read(file: Path, setting: str) -> str:
    try:
        return read_file(file, setting).decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise PenstockError(f"{file}: not UTF-8; see {setting}") from None
