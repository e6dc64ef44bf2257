"""Many users at once: `penstock passwd FILE --import CSV`."""

import csv
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError, UsageError

STDIN = Path("-")
MOST_PASSWORD_BYTES = 65_535
WORDS = {"": False, "no": False, "false": False, "0": False, "scram": True, "yes": True, "true": True, "1": True}
HEADER = ("name", "password")
MOST_COMPLAINTS = 10


@dataclass(frozen=True, slots=True, repr=False)
class NewUser:
    """A line of the CSV file. No output ever contains it."""

    name: str
    password: str
    scram: bool


def read_users(file: Path, scram: bool) -> list[NewUser]:
    """`name,password` or `name,password,scram` in each line, perhaps under a line that says so. `scram`: for all.

    Raises UsageError with a line for each wrong one, and never with a password.
    """
    try:
        if file == STDIN:
            return _users("standard input", sys.stdin, scram)
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return _users(str(file), lines, scram)
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not UTF-8; nothing was changed") from None
    except OSError as error:
        raise PenstockError(
            f"{file}: {error.strerror}; name a CSV file with --import, or - for standard input"
        ) from None


def _users(name: str, lines: Iterable[str], scram: bool) -> list[NewUser]:
    rows = csv.reader(lines, strict=True)
    found: dict[str, NewUser] = {}
    complaints: list[str] = []
    try:
        for row in rows:
            if not row or (rows.line_num == 1 and tuple(cell.strip().lower() for cell in row[:2]) == HEADER):
                continue
            complaint = _take(row, scram, found)
            if complaint:
                complaints.append(f"{name}: line {rows.line_num}: {complaint}")
    except csv.Error as error:
        complaints.append(f"{name}: line {rows.line_num}: not CSV: {error}")
    if complaints:
        more = len(complaints) - MOST_COMPLAINTS
        shown = "\n".join(complaints[:MOST_COMPLAINTS]) + (f"\nand {more} more" if more > 0 else "")
        raise UsageError(f"{shown}\nnothing was changed")
    if not found:
        raise UsageError(f"{name}: names no user; a line is name,password or name,password,scram")
    return list(found.values())


def _take(row: list[str], scram: bool, found: dict[str, NewUser]) -> str:
    """Add one user. Returns what is wrong."""
    from gateway.auth.errors import AuthError
    from gateway.auth.passwords import check_name

    if len(row) not in (2, 3):
        return f"has {len(row)} fields; a line is name,password or name,password,scram"
    name, password = row[0], row[1]
    word = row[2].strip().lower() if len(row) == 3 else ""
    try:
        check_name(name)
    except AuthError as error:
        return str(error)
    if name in found:
        return f"user {name} is in a line above already"
    if not password:
        return f"the password of {name} is empty"
    if len(password.encode()) > MOST_PASSWORD_BYTES:
        return f"the password of {name} has more than {MOST_PASSWORD_BYTES} bytes, which MQTT cannot carry"
    if word not in WORDS:
        return f"the third field is neither scram nor empty, for user {name}"
    found[name] = NewUser(name, password, scram or WORDS[word])
    return ""


def hashed_lines(users: list[NewUser], shown: Callable[[str, float], None]) -> Mapping[str, str]:
    """The lines for the password file. Hashing releases the GIL, so threads keep all processors busy."""
    from gateway.auth.passwords import PasswordLine, hashed
    from gateway.auth.scram import ScramVerifier

    def line(user: NewUser) -> str:
        scram = ScramVerifier.of(user.password).text() if user.scram else ""
        return PasswordLine(hashed(user.password), scram).text(user.name)

    found: dict[str, str] = {}
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for number, (user, text) in enumerate(zip(users, pool.map(line, users), strict=True), 1):
                found[user.name] = text
                shown(f"{number} of {len(users)}", number / len(users))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found
