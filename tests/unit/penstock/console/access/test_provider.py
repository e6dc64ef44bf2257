"""What Authlib promises of ID tokens: each lie is refused by the console itself, without the store's help."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.console.access.provider import ProviderError, ProviderSettings, UnknownSigner, checked_claims
from tests.interop.test_console_lying_provider import TOKENS
from tests.support.lying_provider import CLIENT, LyingProvider, lying_provider

NONCE = "of this login"
OF_THE_STORE = {"sub is empty", "exp is endless"}
"""Whom a token names, and whether its end is a time, is for the store to judge. A login ends by console.session_s."""


@pytest.fixture(scope="module")
def provider() -> Iterator[LyingProvider]:
    with lying_provider() as found:
        found.nonce, found.user = NONCE, "alice"
        yield found


def claims_of(provider: LyingProvider) -> dict[str, object]:
    settings = ProviderSettings(provider.url, CLIENT, "s3cret of the client, long enough")
    params = {"nonce": NONCE, "access_token": "at"}
    return checked_claims(provider.id_token(), provider.jwks(), settings, params)


def test_an_honest_token_is_taken(provider: LyingProvider) -> None:
    provider.lie = ""
    assert claims_of(provider)["sub"] == "alice"


@pytest.mark.parametrize("lie", sorted({*TOKENS} - {"no ID token", "a very long token"} - OF_THE_STORE))
def test_a_lie_is_refused(provider: LyingProvider, lie: str) -> None:
    provider.lie = lie
    with pytest.raises((ProviderError, UnknownSigner)):
        claims_of(provider)
