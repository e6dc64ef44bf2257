"""`penstock passwd`: users and passwords in a file that `auth.password_file` names."""

import getpass
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import PenstockError, UsageError

MOST_PASSWORD_BYTES = 65_535


def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file; made if it is missing.")],
    user: Annotated[str, typer.Argument(metavar="USER", help="The user's name.")],
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the password from a line of standard input.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Take the user out of the file.")] = False,
    scram: Annotated[
        bool,
        typer.Option(
            "--scram", help="Have a verifier for SCRAM-SHA-256 as well: cheaper to guess, if the file is stolen."
        ),
    ] = False,
) -> None:
    """Give a user a password, or take him away; running servers read the file again on SIGHUP.

    The file holds argon2id hashes, never passwords. It is replaced as a whole: readers see the old one or the new one.
    """
    from gateway.auth.passwords import PasswordLine, check_name, hashed
    from gateway.auth.scram import ScramVerifier
    from penstock.auth_files import read_passwords

    check_name(user)
    known = read_passwords(file, "FILE") if file.exists() else {}
    if delete:
        if user not in known:
            raise UsageError(f"{file}: has no user {user}")
        _replace_line(file, user, None)
        return
    password = _read_line() if from_stdin else _ask()
    if not password:
        raise UsageError("the password is empty; nothing was changed")
    if len(password.encode()) > MOST_PASSWORD_BYTES:
        raise UsageError(f"the password has more than {MOST_PASSWORD_BYTES} bytes, which MQTT cannot carry")
    line = PasswordLine(hashed(password), ScramVerifier.of(password).text() if scram else "")
    _replace_line(file, user, line.text(user))


def _read_line() -> str:
    return sys.stdin.readline().rstrip("\r\n")


def _ask() -> str:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask for the password; give it with --stdin")
    password = getpass.getpass("password: ")
    if getpass.getpass("once more: ") != password:
        raise UsageError("these are two passwords; nothing was changed")
    return password


def _replace_line(file: Path, user: str, line: str | None) -> None:
    """Write all other lines again as they are, comments too, with this one in the user's place or at the end."""
    old = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    new = []
    for existing in old:
        if existing.startswith(f"{user}:"):
            if line is not None:
                new.append(line)
                line = None
        else:
            new.append(existing)
    if line is not None:
        new.append(line)
    _write(file, "".join(f"{each}\n" for each in new))


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
                os.chmod(name, old.st_mode & 0o777)
                os.chown(name, old.st_uid, old.st_gid)
            os.replace(name, real)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise PenstockError(f"{file}: {error.strerror}; it was not changed") from None
