"""Patterns of names: what they match, and that a hostile name costs no more than its length."""

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.access import AccessParts
from gateway.auth.client_ids import ClientIds
from gateway.auth.identity import Identity
from gateway.auth.name_patterns import Glob, NamePattern
from tests.support.mqtt_packet_client import access_of

TEXTS = st.text("ab*", max_size=8)
NAMES = st.text("ab", max_size=12)
LONGEST = 65_535


def as_regex(pattern: str) -> str:
    return ".*".join(map(re.escape, pattern.split("*")))


@given(TEXTS, NAMES)
def test_a_star_stands_for_any_characters(pattern: str, name: str) -> None:
    expected = re.fullmatch(as_regex(pattern), name, re.DOTALL) is not None
    assert Glob.parse(pattern).matches(name) == expected
    assert NamePattern.of([pattern]).matches(name) == expected


@given(TEXTS, st.text("a*%u", max_size=6), NAMES)
def test_a_user_name_counts_as_it_is(pattern: str, username: str, name: str) -> None:
    with_user = pattern.replace("b", "%u")
    regex = ".*".join(re.escape(username).join(map(re.escape, piece.split("%u"))) for piece in with_user.split("*"))
    assert Glob.parse(with_user, username).matches(name) == (re.fullmatch(regex, name, re.DOTALL) is not None)


def test_the_longest_name_takes_no_time() -> None:
    """An expression with two stars took 2.6 s for the first of these."""
    hostile = [
        ("*-line-*-cam", "-line-" * (LONGEST // 6)),
        ("*a*a*a*a*b", "a" * LONGEST),
        ("*ab*ab*ab*c*", "ab" * (LONGEST // 2)),
        (f"*{'a' * 40}b{'a' * 40}*x*", "a" * LONGEST),
    ]
    began_s = time.process_time()
    for pattern, name in hostile:
        assert not Glob.parse(pattern).matches(name)
        assert not access_of(AccessParts(client_ids=ClientIds(pattern))).may_be_called(Identity("u"), name)
    assert time.process_time() - began_s < 0.5
