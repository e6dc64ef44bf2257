"""Logins by a provider of OpenID Connect: authorization code with PKCE, state and nonce, in a cookie that only this
process can read.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from cryptography.fernet import Fernet, InvalidToken

from penstock.console.access.provider import Provider, ProviderError
from penstock.console.errors import Problem

LIVES_S = 600
"""How long a login at the provider may take, in seconds."""
MOST_USED = 10_000
"""States that are remembered so that none is used twice."""
MOST_EXCHANGES = 16
MOST_OF_A_SOURCE = 4
"""Codes of one address that are looked at a time."""
MOST_CODE = 4_096
"""Characters of a code."""
AGAIN = "begin again on the page /login"


class Begun(msgspec.Struct, frozen=True):
    """A login that goes on at the provider; its cookie has it."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next_page: str


class SignOn:
    """`name`: of the provider, for people. `user_claim`, `user_prefix`: how the store names a user of the provider."""

    def __init__(self, provider: Provider, name: str, scopes: tuple[str, ...], user_claim: str, user_prefix: str):
        self.provider = provider
        self.name = name
        self._scopes = " ".join(scopes)
        self._user_claim = user_claim
        self._user_prefix = user_prefix
        self._box = Fernet(Fernet.generate_key())
        self._used: OrderedDict[str, None] = OrderedDict()
        self._exchanges: Counter[str] = Counter()

    async def begin(self, redirect_uri: str, next_page: str) -> tuple[str, str]:
        """The address at the provider, and the cookie. Raises Problem."""
        state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
        begun = Begun(state, nonce, verifier, redirect_uri, next_page)
        try:
            metadata = await self.provider.metadata()
        except ProviderError as error:
            raise self._away(error) from None
        address = prepare_grant_uri(
            metadata.authorization_endpoint,
            self.provider.settings.client_id,
            "code",
            redirect_uri=redirect_uri,
            scope=self._scopes,
            state=begun.state,
            nonce=begun.nonce,
            code_challenge=create_s256_code_challenge(begun.verifier),
            code_challenge_method="S256",
        )
        return address, self._box.encrypt(msgspec.msgpack.encode(begun)).decode()

    async def finish(self, cookie: str, answer: Mapping[str, str], source: str) -> tuple[str, dict[str, Any], str]:
        """The ID token, its claims, and the page to go to, for the answer of the provider. Raises Problem."""
        begun = self._begun(cookie, answer)
        if "error" in answer:
            why = f"{answer['error'][:100]} {answer.get('error_description', '')[:200]}"
            raise Problem(401, "sign-on-refused", f"{self.name} refused the login: {why.strip()}", AGAIN)
        code = answer.get("code", "")
        if not code or len(code) > MOST_CODE:
            raise Problem(400, "bad-sign-on", f"{self.name} sent no code", AGAIN)
        if self._exchanges.total() >= MOST_EXCHANGES or self._exchanges[source] >= MOST_OF_A_SOURCE:
            raise Problem(503, "too-many-logins", "too many logins are under way", AGAIN, {"Retry-After": "1"})
        self._exchanges[source] += 1
        try:
            found = await self.provider.token(code, begun.verifier, begun.redirect_uri)
            claims = await self.provider.claims(found, begun.nonce)
        except ProviderError as error:
            raise self._away(error) from None
        finally:
            self._exchanges[source] -= 1
            self._exchanges += Counter()  # without zeros
        return found["id_token"], claims, begun.next_page

    def _begun(self, cookie: str, answer: Mapping[str, str]) -> Begun:
        """The login that this answer belongs to; it is used up. Raises Problem."""
        try:
            data = self._box.decrypt(cookie.encode(), LIVES_S)
            begun = msgspec.msgpack.decode(data, type=Begun)
        except (InvalidToken, msgspec.DecodeError, UnicodeError):
            begun = None
        state = answer.get("state", "").encode()
        if begun is None or begun.state in self._used or not secrets.compare_digest(state, begun.state.encode()):
            detail = "this browser has not begun that login, or it took too long, or it was used before"
            raise Problem(400, "bad-sign-on", detail, AGAIN)
        self._used[begun.state] = None
        if len(self._used) > MOST_USED:
            self._used.popitem(last=False)
        if answer.get("iss", self.provider.settings.issuer) != self.provider.settings.issuer:
            raise Problem(400, "bad-sign-on", "another provider answered", AGAIN)
        return begun

    def check_user(self, found: str, claims: Mapping[str, Any]) -> None:
        """Refuse a user whom the store names otherwise than by prefix and claim. Raises Problem."""
        claimed = claims.get(self._user_claim)
        if not isinstance(claimed, str) or not claimed or found != self._user_prefix + claimed:
            raise Problem(
                403,
                "another-user",
                f"the store takes this user for {found[:100]!r}, not for {self._user_prefix}{str(claimed)[:100]}",
                "give store and console the same auth.jwt_keys_url_prefix and auth.jwt_user_claim",
            )

    def _away(self, error: ProviderError) -> Problem:
        return Problem(502, "no-sign-on", f"{self.name}: {error}", "try again later, or ask an operator of the server")
