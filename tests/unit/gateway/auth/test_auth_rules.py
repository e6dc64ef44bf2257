"""The parts of authentication that need no socket: the chain, the breaker, the cache, the buckets."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.quotas import Bucket, grant
from gateway.auth.access import AccessParts, Question
from gateway.auth.client_ids import MOST_CHARACTERS, ClientIds
from gateway.auth.errors import AuthError
from gateway.auth.hook import TimedCache
from gateway.auth.http import Breaker
from gateway.auth.identity import (
    UNKNOWN,
    Authenticator,
    Certificates,
    Chain,
    Credentials,
    Identity,
    LoginRefused,
    Verdict,
)
from gateway.auth.passwords import hashed, parse_passwords
from gateway.auth.permissions import MAX_QOS, REFUSED, Action, Permissions
from gateway.auth.scram import ScramVerifier
from gateway.auth.settings import AuthSettings, is_auth_configured
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_packet_client import access_of


class Says:
    """Answers the same to everybody."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def check(self, credentials: Credentials, answer: object) -> None:
        assert callable(answer)
        answer(self._verdict)


def verdict(chain: Chain, username: str | None = "u", certificate: str = "") -> Verdict:
    found: list[Verdict] = []
    chain.check(Credentials("c", username, None, peer_identity=certificate), found.append)
    (only,) = found
    return only


NOBODY, ALICE, NO = Says(None), Says(Identity("alice")), Says(LoginRefused("no"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([NOBODY, ALICE, NO], Identity("alice")),
        ([NOBODY, NO, ALICE], LoginRefused("no")),
        ([NOBODY, NOBODY], UNKNOWN),
    ],
)
def test_the_first_who_knows_decides(asked: list[Authenticator], expected: Verdict) -> None:
    assert verdict(Chain(asked, allow_anonymous=False)) == expected
    assert verdict(Chain(asked, allow_anonymous=True)) == expected


def test_without_credentials_nobody_is_asked() -> None:
    refused = verdict(Chain([ALICE], allow_anonymous=False), None)
    assert isinstance(refused, LoginRefused)
    assert refused.reason_code is ReasonCode.NOT_AUTHORIZED
    assert verdict(Chain([ALICE], allow_anonymous=True), None) == Identity()
    assert verdict(Chain([], allow_anonymous=False), "u") == Identity()  # a name that nobody verified is none


def test_a_certificate_is_a_credential_where_it_counts() -> None:
    chain = Chain([Certificates(), NO], allow_anonymous=False)
    assert verdict(chain, None, "device-1") == Identity("device-1")
    assert verdict(chain, "u", "device-1") == Identity("device-1")
    assert verdict(chain, "u") == LoginRefused("no")
    assert isinstance(verdict(Chain([NO], allow_anonymous=False), None, "device-1"), LoginRefused)


@pytest.mark.parametrize(
    ("pattern", "user", "client_id", "expected"),
    [
        ("", "u", "anything", True),
        ("%u", "u", "u", True),
        ("%u", "u", "v", False),
        ("%u", "", "", False),
        ("%u-*", "a.c", "abc-1", False),
        ("%u-*", "a*", "abc-1", False),
        ("%u-*", "a*", "a*-1", True),
        ("x-%u-*", "u", "x-u-", True),
        ("dev-*", "", "dev-1", True),
        ("dev-*", "", "other", False),
    ],
)
def test_client_identifiers(pattern: str, user: str, client_id: str, expected: bool) -> None:
    assert access_of(AccessParts(client_ids=ClientIds(pattern))).may_be_called(Identity(user), client_id) is expected


@pytest.mark.parametrize(
    ("pattern", "user", "client_id", "expected"),
    [
        ("%u-*", "dev", "dev-1-x", False),  # it is dev-1's
        ("%u-*", "dev-1", "dev-1-x", True),
        ("%u-*", "dev", "dev-2-x", True),  # there is no user dev-2
        ("%u-*", "dev", "dev-1", True),  # what fits dev-1 goes on behind it
        ("%u*", "dev", "dev-1", False),
        ("%u*", "dev-1", "dev-1", True),
        ("%u", "dev", "dev-1", False),
        ("*-%u", "1", "x-dev-1", False),
        ("*-%u", "dev-1", "x-dev-1", True),
        ("*%u", "1", "dev-1", False),
        ("x-%u-*-z", "dev", "x-dev-1-y-z", False),
        ("x-%u-*-z", "dev-1", "x-dev-1-y-z", True),
        ("%u:*", "dev", "dev:1:2", True),
        ("%u:*", "dev:1", "dev:1:2", False),  # a name that no password file has
    ],
)
def test_a_client_identifier_is_one_users(pattern: str, user: str, client_id: str, expected: bool) -> None:
    assert ClientIds(pattern).may_take(user, client_id, {"dev", "dev-1", "1"}) is expected


@pytest.mark.parametrize("pattern", ["*%u*", "a*b%u-*", "%u-%u"])
def test_a_pattern_that_cannot_tell_users_apart_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="client_ids"):
        ClientIds(pattern)


def test_a_client_identifier_too_long_to_be_judged_is_no_users() -> None:
    """There are as many places for a name in it as it has characters."""
    assert ClientIds("%u-*").may_take("-", "-" * MOST_CHARACTERS, {"dev"})
    assert not ClientIds("%u-*").may_take("-", "-" * (MOST_CHARACTERS + 1), {"dev"})
    assert ClientIds("*").may_take("", "-" * (MOST_CHARACTERS + 1), {"dev"})


def test_without_rules_who_is_in_may_do_everything_and_with_any_only_that() -> None:
    question = Question("u", "c", Action.PUBLISH, "a")
    access = access_of(AccessParts())
    assert access.is_open_to(Identity("u"))
    assert access.decide(Identity("u"), question) == MAX_QOS
    assert access.decide(Identity("u", rules=()), question) == REFUSED
    assert not access.is_open_to(Identity("u", rules=()))
    assert access_of(AccessParts(permissions=Permissions())).decide(Identity("u"), question) == REFUSED
    assert access_of(AccessParts(permissions=Permissions((), MAX_QOS))).decide(Identity("u"), question) == MAX_QOS


def test_the_breaker_opens_after_failures_in_a_row_and_tries_one() -> None:
    breaker = Breaker(3, 10.0)
    for _ in range(2):
        breaker.failed(0.0)
    breaker.succeeded()
    for _ in range(3):
        assert breaker.lets(0.0)
        breaker.failed(0.0)
    assert not breaker.lets(9.9)
    assert breaker.lets(10.0)
    assert not breaker.lets(10.0)
    breaker.failed(10.0)
    assert not breaker.lets(19.9)
    assert breaker.lets(20.0)
    breaker.succeeded()
    assert breaker.lets(20.0)
    assert breaker.lets(20.0)


def test_the_cache_forgets_what_is_old_and_what_is_too_much() -> None:
    now_s = 0.0
    cache = TimedCache[int](2, 10.0, lambda: now_s)
    cache.put("a", 1)
    now_s = 5.0
    cache.put("b", 2)
    assert cache.get("a") == 1
    now_s = 10.0
    assert cache.get("a") is None
    assert cache.get("b") == 2
    cache.put("c", 3)
    cache.put("d", 4)
    assert len(cache) == 2
    assert cache.get("b") is None
    nothing = TimedCache[int](2, 0.0, lambda: now_s)
    nothing.put("a", 1)
    assert nothing.get("a") is None


@given(
    st.integers(1, 1_000),
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 300)), min_size=1, max_size=50),
)
def test_no_more_is_granted_than_the_rate_and_one_burst(per_s: int, steps: list[tuple[float, int]]) -> None:
    now_s, used, allowed = 0.0, 0, 0
    bucket = Bucket(per_s, 1.0, now_s)
    for passes_s, wanted in steps:
        now_s += passes_s
        for _ in range(wanted):
            if allowed <= 0:
                allowed, pause_s = grant([bucket], allowed, 64, now_s)
                assert (pause_s > 0) == (allowed == 0)
                if pause_s:
                    break
            allowed -= 1
            used += 1
    assert used <= per_s * (now_s + 1.0) + 1


def test_bucket_debt_is_paid_back_first() -> None:
    bucket = Bucket(10, 1.0, 0.0)
    granted, pause_s = grant([bucket], -30, 64, 0.0)
    assert granted == 0
    assert pause_s == pytest.approx(2.1)
    assert grant([bucket], 0, 64, 2.0)[0] == 0
    assert grant([bucket], 0, 64, 2.2)[0] == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("alice\n", "line 1: is not NAME:VERIFIER"),
        ("# x\n\nalice:\n", "line 3: has no verifier"),
        ("alice:secret\n", "line 1: holds something"),
        ("alice:$argon2id$v=19$broken\n", "line 1: the argon2id verifier is damaged"),
        ("alice:SCRAM-SHA-256$4096:AAAA$AAAA:AAAA\n", "line 1: the SCRAM-SHA-256 verifier is damaged"),
        (" alice:x\n", "line 1: ' alice'"),
    ],
)
def test_a_wrong_line_of_the_password_file_is_named(text: str, complaint: str) -> None:
    with pytest.raises(AuthError) as raised:
        parse_passwords(text)
    assert str(raised.value).startswith(complaint)
    assert "secret" not in str(raised.value)


def test_a_user_has_one_line() -> None:
    line = f"alice:{hashed('x')} {ScramVerifier.of('x').text()}\n"
    assert parse_passwords(line)["alice"].text("alice") + "\n" == line
    with pytest.raises(AuthError, match="line 2: 'alice' has a line above"):
        parse_passwords(line * 2)


def test_settings_that_count_as_authentication() -> None:
    assert not is_auth_configured(AuthSettings(allow_anonymous=True, permissions_file=Path("x")))
    assert is_auth_configured(AuthSettings(password_file=Path("x")))
    assert is_auth_configured(AuthSettings(http_connect_url="http://x"))
