"""The entry point of the container image: runs `penstock` with its arguments; `serve` is reachable, but not open.

A container's loopback is its own, so `serve` without an address listens on mqtt://0.0.0.0:1883 here. If other machines
can connect and no authentication is set, the first start creates a user and a password, prints them once, and keeps the
hash in `passwords` in the data folder. PENSTOCK_ALLOW_ANONYMOUS=true admits clients without a password. The console
listens on 0.0.0.0:8080 if users have to log in, else on the container's loopback.
"""

from __future__ import annotations

import os
import secrets
import sys
from argparse import ArgumentError, ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.config.settings import Settings, given, load
from penstock.errors import PenstockError, SettingsError, UsageError

LISTEN = "mqtt://0.0.0.0:1883"
USER = "penstock"
CONSOLE_LISTEN = "0.0.0.0:8080"
PASSWORDS = "passwords"
"""A file in the data folder."""
PASSWORD_BYTES = 12  # written as hexadecimal digits, which no shell or option parser misreads
ANONYMOUS, ANONYMOUS_SETTING = "PENSTOCK_ALLOW_ANONYMOUS", "PENSTOCK_AUTH__ALLOW_ANONYMOUS"
PASSWORD_FILE_SETTING = "PENSTOCK_AUTH__PASSWORD_FILE"
CONSOLE_SETTING = "PENSTOCK_CONSOLE__LISTEN"
ONLY_TELLS = {"--help", "--print-config"}


def main() -> None:
    """Replace this process by `penstock`."""
    from penstock.cli import fail, package_errors

    try:
        arguments, environment = prepared(sys.argv[1:], os.environ)
    except PenstockError as error:
        fail(error, error.exit_code)
    except package_errors() as error:
        fail(error, exit_code=1)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "penstock", *arguments], environment)


def prepared(arguments: Sequence[str], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The arguments and environment for `penstock`. Raises the errors of wrong settings."""
    arguments, environment = list(arguments), dict(env)
    if arguments[:1] != ["serve"] or ONLY_TELLS.intersection(arguments):
        return arguments, environment
    _let_anonymous_in(environment)
    flags, config = _flags(arguments[1:])
    if not flags["listen"] and "gateway.listen" not in given(environment, config):
        flags["listen"] = [LISTEN]
        arguments += ["--listen", LISTEN]
    settings = load(flags, environment, config)
    asks_for_password = _wants_password(settings)
    if asks_for_password:
        environment[PASSWORD_FILE_SETTING] = str(_passwords(settings.store.data))
    if (asks_for_password or _has_users(settings)) and "console.listen" not in given(environment, config):
        environment[CONSOLE_SETTING] = CONSOLE_LISTEN
    return arguments, environment


def _let_anonymous_in(environment: dict[str, str]) -> None:
    """Translate PENSTOCK_ALLOW_ANONYMOUS, short for the setting's full name."""
    said = environment.pop(ANONYMOUS, "")
    if said and environment.get(ANONYMOUS_SETTING):
        raise SettingsError(f"auth.allow_anonymous: both {ANONYMOUS} and {ANONYMOUS_SETTING} are set; unset one")
    if said:
        environment[ANONYMOUS_SETTING] = said


def _flags(arguments: Sequence[str]) -> tuple[dict[str, object], Path | None]:
    """The flags of `serve` that matter here; `serve` itself reports other errors."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--listen", action="append")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--config", type=Path)
    try:
        found, _ = parser.parse_known_args(arguments)
    except ArgumentError as error:
        raise UsageError(str(error)) from None
    return {"listen": found.listen, "data": found.data}, found.config


def _wants_password(settings: Settings) -> bool:
    """Whether other machines can connect and no authentication is set."""
    from gateway.listen_address import ListenAddress
    from penstock.servers.listeners import are_credentials_needed

    addresses = [ListenAddress.parse(url) for url in settings.gateway.listen]
    is_reachable = not all(each.is_local for each in addresses)
    return is_reachable and not (are_credentials_needed(settings) or settings.auth.allow_anonymous)


def _has_users(settings: Settings) -> bool:
    """Whether everybody has to log in."""
    from gateway.auth.settings import is_auth_configured

    return is_auth_configured(settings.auth) and not settings.auth.allow_anonymous


def _passwords(data: Path) -> Path:
    """The password file of a data folder, made if it is missing.

    The password is printed before the file is written: after a kill in between, the next start is another first start.
    """
    from gateway.auth.passwords import PasswordLine, hashed
    from penstock.commands.passwd import replace_lines

    file = data / PASSWORDS
    try:
        data.mkdir(0o700, parents=True, exist_ok=True)
        is_first = not file.exists()
    except OSError as error:
        raise PenstockError(
            f"{data}: {error.strerror}; mount a volume that user {os.getuid()} can write, or name another --data"
        ) from None
    if not is_first:
        print(
            f"clients log in with the user name and the password that the first start printed (kept in {file})",
            flush=True,
        )
        return file
    password = secrets.token_hex(PASSWORD_BYTES)
    print(
        f"first start: clients log in with the user name {USER} and the password {password}\n"
        f"It is not shown again; `penstock passwd {file} {USER}` changes it. Without passwords: {ANONYMOUS}=true",
        flush=True,
    )
    replace_lines(file, {USER: PasswordLine(hashed(password), "").text(USER)})
    return file


if __name__ == "__main__":
    main()
