"""The files that [auth] names, read as a whole. Complaints are one line that names the file and what to do."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gateway.auth.errors import AuthError
from gateway.auth.passwords import PasswordTable, parse_passwords
from gateway.auth.permissions import Permissions, RuleError, parse_permissions
from gateway.auth.settings import AuthSettings
from penstock.errors import PenstockError

if TYPE_CHECKING:  # importing it takes time, which who has no tokens need not spend
    from gateway.auth.tokens import Keys

T = TypeVar("T")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]+)")


@dataclass(frozen=True, slots=True)
class Files:
    """What the files say; None where no file is named."""

    passwords: PasswordTable | None
    permissions: Permissions | None
    keys: Keys | None
    header: tuple[str, str] | None


def read_files(settings: AuthSettings) -> Files:
    """Raises PenstockError."""
    keys: Keys = ()
    if settings.jwt_secret_file is not None:
        from gateway.auth.tokens import secret_key

        secret = _read(settings.jwt_secret_file, "auth.jwt_secret_file").strip().encode()
        keys += (_parsed(settings.jwt_secret_file, "auth.jwt_secret_file", lambda _: secret_key(secret)),)
    if settings.jwt_keys_file is not None:
        from gateway.auth.tokens import parse_keys

        keys += _parsed(settings.jwt_keys_file, "auth.jwt_keys_file", parse_keys)
    password_file, header_file = settings.password_file, settings.http_header_file
    return Files(
        None if password_file is None else read_passwords(password_file, "auth.password_file"),
        None if settings.permissions_file is None else _read_permissions(settings.permissions_file),
        keys or None,
        None if header_file is None else _parsed(header_file, "auth.http_header_file", _parse_header),
    )


def read_passwords(file: Path, setting: str) -> PasswordTable:
    """Raises PenstockError."""
    return _parsed(file, setting, parse_passwords)


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
