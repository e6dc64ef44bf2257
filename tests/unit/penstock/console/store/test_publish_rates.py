"""The buckets from which the console's publishers pay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.access.quota_settings import QuotaSettings
from penstock.console.store.publish_rates import MOST_PAYERS, PublishesTooFast, PublishRates

BOUNDED = QuotaSettings(user_messages_per_s=10, namespace_bytes_per_s=100)


def refused(pay: Callable[[], None]) -> PublishesTooFast:
    with pytest.raises(PublishesTooFast) as caught:
        pay()
    return caught.value


def test_publish_rates_are_unbounded_by_default() -> None:
    rates = PublishRates(QuotaSettings())
    assert not rates.are_bounded
    rates.meter(b"c", "alice", "acme", 0.0).pay(1_000_000, 1 << 40, 0.0)


def test_two_connections_of_a_user_pay_from_one_bucket() -> None:
    rates = PublishRates(BOUNDED)
    first, second = (rates.meter(client, "alice", "", 0.0) for client in (b"1", b"2"))
    first.pay(30, 0, 0.0)
    error = refused(lambda: second.pay(1, 0, 0.0))
    assert error.wait_s == pytest.approx(2.1)
    second.pay(1, 0, 2.2)
    rates.meter(b"3", "bob", "", 0.0).pay(1, 0, 0.0)


def test_a_namespace_pays_for_its_users_and_the_default_one_if_it_is_bounded() -> None:
    rates = PublishRates(BOUNDED)
    rates.meter(b"1", "$ns:acme/x", "acme", 0.0).pay(1, 1_000, 0.0)
    assert "namespace_bytes_per_s" in str(refused(lambda: rates.meter(b"2", "y", "acme", 0.0).pay(1, 1, 0.0)))
    rates.meter(b"3", "z", "", 0.0).pay(1, 1_000, 0.0)
    rates.meter(b"3", "z", "", 0.0).pay(1, 1, 0.0)


def test_refused_publish_takes_no_tokens() -> None:
    meter = PublishRates(BOUNDED).meter(b"1", "alice", "acme", 0.0)
    meter.pay(1, 200, 0.0)
    assert refused(lambda: meter.pay(1, 1, 0.0)).wait_s == refused(lambda: meter.pay(1, 1, 0.0)).wait_s


def test_a_debt_outlives_the_connection_until_it_is_paid() -> None:
    rates = PublishRates(BOUNDED)
    rates.meter(b"1", "alice", "", 0.0).pay(1_000, 0, 0.0)
    rates.tick(set(), 60.0)
    refused(lambda: rates.meter(b"2", "alice", "", 60.0).pay(1, 0, 60.0))
    rates.tick(set(), 1_000.0)
    rates.meter(b"2", "alice", "", 1_000.0).pay(1, 0, 1_000.0)
    for number in range(MOST_PAYERS + 1):
        rates.meter(b"%d" % number, "", "", 0.0)
    assert len(rates._buckets) == MOST_PAYERS
