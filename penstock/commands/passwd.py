"""`penstock passwd`: users and passwords in a file that `auth.password_file` names."""

import getpass
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import PenstockError, UsageError

MOST_PASSWORD_BYTES = 65_535
NO_USERS = "# no users\n"
"""Servers take an empty file for one that is still being written."""


def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file; created if it is missing.")],
    user: Annotated[str, typer.Argument(metavar="[USER]", help="The user's name.")] = "",
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the password from a line of standard input.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the user from the file.")] = False,
    scram: Annotated[
        bool,
        typer.Option("--scram", help="Add a SCRAM-SHA-256 verifier. It is cheaper to guess if the file is stolen."),
    ] = False,
    many: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="CSV",
            help="Add all users of a CSV file with lines name,password[,scram]; - is standard input.",
        ),
    ] = None,
    shows_names: Annotated[bool, typer.Option("--list", help="Print the names of all users.")] = False,
) -> None:
    """Set the password of one user or of many, or remove a user. Running servers read a changed file again.

    The file holds argon2id hashes, never passwords. It is replaced as a whole: a reader sees the
    old file or the new one.
    """
    from gateway.auth.passwords import PasswordLine, check_name, hashed
    from gateway.auth.scram import ScramVerifier
    from penstock.config.auth_files import read_passwords

    if many is not None or shows_names:
        if user or from_stdin or delete or (many is not None and shows_names):
            raise UsageError("--import and --list cannot be combined with USER, --stdin or --delete")
        if many is None:
            typer.echo("".join(f"{name}\n" for name in read_passwords(file, "FILE")), nl=False)
        else:
            _import(file, many, scram)
        return
    if not user:
        raise UsageError("give a USER, or a CSV file of users with --import")
    check_name(user)
    known = read_passwords(file, "FILE") if file.exists() else {}
    if delete:
        if user not in known:
            raise UsageError(f"{file}: has no user {user}")
        replace_lines(file, {user: None})
        return
    password = _read_line() if from_stdin else _ask()
    if not password:
        raise UsageError("the password is empty; nothing was changed")
    if len(password.encode()) > MOST_PASSWORD_BYTES:
        raise UsageError(f"the password has more than {MOST_PASSWORD_BYTES} bytes, which MQTT cannot carry")
    line = PasswordLine(hashed(password), ScramVerifier.of(password).text() if scram else "")
    replace_lines(file, {user: line.text(user)})


def _import(file: Path, many: Path, scram: bool) -> None:
    """Add all users of the CSV file, or none if a line is invalid."""
    from penstock.commands.passwd_import import hashed_lines, read_users
    from penstock.commands.progress import shown
    from penstock.config.auth_files import read_passwords

    if file.exists():
        read_passwords(file, "FILE")
    users = read_users(many, scram)
    with shown("hashing passwords") as progress:
        lines = hashed_lines(users, progress)
    replace_lines(file, lines)
    typer.echo(f"{len(lines)} users are in {file}")


def _read_line() -> str:
    return sys.stdin.readline().rstrip("\r\n")


def _ask() -> str:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask for the password; use --stdin")
    password = getpass.getpass("password: ")
    if getpass.getpass("once more: ") != password:
        raise UsageError("the two passwords differ; nothing was changed")
    return password


def replace_lines(file: Path, lines: Mapping[str, str | None]) -> None:
    """Replace the lines of these users, or append them. All other lines and comments stay as they are."""
    old = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    new: list[str | None] = []
    added = dict(lines)
    for existing in old:
        user = existing.partition(":")[0]
        new.append(added.pop(user, None) if user in lines else existing)
    new += added.values()
    _write(file, "".join(f"{each}\n" for each in new if each is not None) or NO_USERS)


def _write(file: Path, text: str) -> None:
    """In one step, on disk before it counts; only its owner may read a new one. A link stays one."""
    real = file.resolve()
    try:
        old = real.stat() if real.exists() else None
        descriptor, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as new:
                new.write(text)
                new.flush()
                os.fsync(new.fileno())
            if old is not None:
                os.chmod(name, old.st_mode & 0o770)
                os.chown(name, old.st_uid, old.st_gid)
            os.replace(name, real)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise PenstockError(f"{file}: {error.strerror}; it was not changed") from None
