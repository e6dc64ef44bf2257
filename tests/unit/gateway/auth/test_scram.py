"""SCRAM tells a user who does not exist nothing that it does not tell one who does."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections import Counter

import pytest

from gateway.auth.passwords import PasswordLine, PasswordTable, parse_passwords
from gateway.auth.scram import FakeVerifiers, ScramExchange, ScramVerifier

ALICE = ScramVerifier.of("x").text()


def table(*verifiers: str) -> PasswordTable:
    return parse_passwords("".join(f"u{n}:{verifier}\n" for n, verifier in enumerate(verifiers)))


def challenge(passwords: PasswordTable, username: str) -> tuple[bytes, int]:
    """(salt, iterations)"""
    assert passwords.fakes is not None
    known = passwords.get(username, PasswordLine()).scram
    exchange = ScramExchange(lambda _: known, passwords.fakes)
    fields = dict(part.split("=", 1) for part in exchange.first(f"n,,n={username},r=abc".encode()).decode().split(","))
    return base64.b64decode(fields["s"]), int(fields["i"])


def test_salts_are_as_long_and_iterations_as_many_as_the_files() -> None:
    passwords = table(ALICE)
    known, unknown = challenge(passwords, "u0"), challenge(passwords, "nobody")
    assert (len(unknown[0]), unknown[1]) == (len(known[0]), known[1])
    assert challenge(passwords, "nobody") == unknown
    assert challenge(passwords, "nobody-2")[0] != unknown[0]


def test_of_several_kinds_each_has_its_share() -> None:
    other = ScramVerifier(20_000, b"s" * 24, bytes(32), bytes(32)).text()
    passwords = table(*[ALICE] * 3, other)
    shapes = Counter(len(challenge(passwords, f"nobody-{n}")[0]) for n in range(400))
    assert 50 < shapes[24] < 150
    assert len(shapes) == 2


def test_a_user_who_comes_does_not_change_them() -> None:
    before, after = table(ALICE), table(ALICE, ScramVerifier.of("y").text())
    assert challenge(before, "nobody") == challenge(after, "nobody")


def test_scram_challenges_of_unknown_users_depend_on_the_file() -> None:
    assert challenge(table(ALICE), "nobody") != challenge(table(ScramVerifier.of("x").text()), "nobody")


def test_all_processes_agree() -> None:
    script = (
        "import sys; from gateway.auth.scram import FakeVerifiers as F; print(F([sys.argv[1]], 's').of('nobody').salt)"
    )
    salts = {
        subprocess.run(
            [sys.executable, "-c", script, ALICE],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert salts == {f"{FakeVerifiers([ALICE], 's').of('nobody').salt!r}\n".encode()}


def test_a_file_without_such_verifiers_has_none() -> None:
    assert parse_passwords("# nobody\n").fakes is None


@pytest.mark.parametrize("count", [1, 100_000])
def test_the_challenge_of_a_large_file_is_made_at_once(count: int) -> None:
    """The kinds are counted when the file is read, and not for each client."""
    fakes = FakeVerifiers([ALICE] * count, "secret")
    assert len(fakes._shapes) == 1
