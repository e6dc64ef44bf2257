"""Who is kept out: the bans by themselves, and a gateway that has some."""

from __future__ import annotations

import pytest

from gateway.auth.bans import Ban, BanKind, Bans
from gateway.auth.errors import AuthError
from gateway.auth.sources import is_loopback, source_of
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench

NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("value", "address", "is_banned"),
    [
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("192.0.2.7", "::ffff:192.0.2.7", True),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("192.0.2.0/24", "192.0.2.255", True),
        ("192.0.2.9/24", "192.0.2.255", True),
        ("192.0.2.0/24", "192.0.3.0", False),
        ("0.0.0.0/0", "10.1.2.3", True),
        ("0.0.0.0/0", "2001:db8::1", False),
        ("2001:db8::/64", "2001:db8::ffff", True),
        ("2001:db8::/64", "2001:db8:0:1::1", False),
        ("2001:DB8::1", "2001:db8:0::1", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("192.0.2.7", "", False),
    ],
)
def test_an_address_or_network_is_banned(value: str, address: str, is_banned: bool) -> None:
    bans = Bans()
    ban = bans.ban("address", value, None, "test")
    assert bans.refuses(address, "u", "c", NOW_MS) is (ban if is_banned else None)
    assert ban.refused == is_banned
    assert bans.lift("address", value)
    assert bans.refuses(address, "u", "c", NOW_MS) is None
    assert not bans.lift("address", value)


@pytest.mark.parametrize(("kind", "value"), [("user", "eve"), ("client_id", "c-1")])
def test_a_user_or_a_client_identifier_is_banned(kind: BanKind, value: str) -> None:
    bans = Bans()
    bans.ban(kind, value, None, "test")
    assert bans.refuses("192.0.2.7", "eve", "c-1", NOW_MS) is not None
    assert bans.refuses("192.0.2.7", "c-1", "eve", NOW_MS) is None
    assert bans.refuses("192.0.2.7", "", "", NOW_MS) is None
    assert bans.refused[kind] == 1
    assert bans.counts() == {"address": 0, "user": 0, "client_id": 0, kind: 1}


def test_a_ban_ends_when_its_time_has_come() -> None:
    bans = Bans()
    bans.ban("user", "eve", NOW_MS, "test")
    bans.ban("address", "192.0.2.7", NOW_MS, "test")
    assert bans.refuses("192.0.2.7", "", "", NOW_MS - 1) is not None
    assert bans.refuses("192.0.2.7", "eve", "", NOW_MS) is None
    assert bans.listing(NOW_MS) == []


def test_the_newest_ban_of_a_value_counts_and_keeps_what_was_counted() -> None:
    bans = Bans()
    bans.ban("user", "eve", NOW_MS, "first")
    bans.refuses("", "eve", "", NOW_MS - 1)
    bans.ban("user", "eve", None, "second")
    assert bans.listing(NOW_MS) == [Ban("user", "eve", None, "second", refused=1)]


def test_their_number_is_bounded_and_what_an_operator_said_stays() -> None:
    bans = Bans(most=2)
    bans.ban("user", "operators", None, "by hand")
    for user in ("a", "b", "c"):
        bans.ban("user", user, None, "test", automatic=True)
    assert [ban.value for ban in bans.listing(NOW_MS)] == ["operators", "c"]
    bans.ban("user", "second", None, "by hand")
    with pytest.raises(AuthError, match="2 bans already"):
        bans.ban("user", "third", None, "by hand")


def test_automatic_bans_are_told() -> None:
    told: list[Ban] = []
    bans = Bans(told.append)
    bans.ban("user", "by hand", None, "test")
    bans.ban("user", "by itself", None, "test", automatic=True)
    assert [ban.value for ban in told] == ["by itself"]


@pytest.mark.parametrize(
    ("kind", "value"), [("address", "eve"), ("address", ""), ("user", ""), ("address", "1.2.3.4/33")]
)
def test_ban_of_an_invalid_value_is_an_error(kind: BanKind, value: str) -> None:
    with pytest.raises(AuthError):
        Bans().ban(kind, value, None, "test")


def test_addresses_are_counted_by_what_one_subscriber_has() -> None:
    assert source_of("192.0.2.7") == source_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert source_of("::1") == "::1"
    assert source_of("") == ""
    assert [is_loopback(each) for each in ("127.1.2.3", "::1", "", "192.0.2.7", "2001:db8::/64")] == [
        True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("kind", "value"), [("address", "192.0.2.1"), ("user", "eve"), ("client_id", "c")])
def test_a_banned_client_is_refused_until_the_ban_is_lifted(
    bench: Bench, version: int, kind: BanKind, value: str
) -> None:
    bans = bench.broker.ban_sweep.bans
    bans.ban(kind, value, None, "it sends nonsense")
    client = bench.client(version)
    answer = client.connect("c", username="eve", password=b"x")
    expected = ReasonCode.BANNED if version == 5 else ReasonCode.NOT_AUTHORIZED
    assert (answer.reason_code, client.is_closed) == (expected, True)
    assert bench.broker.admission.refused["banned"] == 1
    bans.lift(kind, value)
    assert bench.client(version).connect("c", username="eve", password=b"x").reason_code is ReasonCode.SUCCESS
