"""A provider of OpenID Connect: what it says of itself, its keys, and its answer to a code. All of it may be a lie."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from gateway.auth.http import parse_object
from penstock.console.errors import ConsoleError

TIMEOUT_S = 10.0
"""Of one request to the provider."""
MOST_ANSWER_BYTES = 512 << 10
MOST_TOKEN_BYTES = 16 << 10
PARSED_AT_ONCE_BYTES = 8 << 10
"""Longer answers are parsed in a thread."""
FRESH_S = 600.0
"""How long its metadata and keys count."""
AGAIN_S = 10.0
"""Seconds between two requests because a key is unknown, or because the last one failed, at least."""
LEEWAY_S = 10
ALGORITHMS = [
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
]
"""Of signatures with a private key of the provider: neither `none` nor a shared secret."""
KINDS = {"RSA", "EC", "OKP"}
SHOWN = 200
"""Characters of an answer in an error."""


class ProviderError(ConsoleError):
    """The provider gave no answer that counts."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)  # empty: a public client, which has PKCE alone


@dataclass(frozen=True, slots=True)
class Metadata:
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    takes_basic: bool  # the secret of a client as Basic; else in the form


class Provider:
    """Owner of the connections to it. Close it at the end."""

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,  # what a few bytes become is not bounded
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._metadata: Metadata | None = None
        self._keys: dict[str, Any] = {}
        self._asked_s = self._keys_s = float("-inf")
        self._fault = ""

    async def close(self) -> None:
        await self._session.close()

    async def metadata(self) -> Metadata:
        """Asked once for all who wait. Raises ProviderError."""
        async with self._lock:
            age_s = self._loop.time() - self._asked_s
            if self._metadata is not None and age_s < FRESH_S:
                return self._metadata
            if self._fault and age_s < AGAIN_S:
                raise ProviderError(self._fault)
            self._asked_s, self._fault = self._loop.time(), ""
            try:
                self._metadata = await self._discovered()
            except ProviderError as error:
                self._metadata, self._fault = None, str(error)
                raise
            return self._metadata

    async def _discovered(self) -> Metadata:
        issuer = self.settings.issuer
        found = await self._ask("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise ProviderError(f"it calls itself {str(found.get('issuer'))[:SHOWN]!r}, not {issuer!r}")
        methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return Metadata(
            self._address(found, "authorization_endpoint"),
            self._address(found, "token_endpoint"),
            self._address(found, "jwks_uri"),
            takes_basic=not isinstance(methods, list) or "client_secret_basic" in methods,
        )

    def _address(self, found: Mapping[str, Any], name: str) -> str:
        """Raises ProviderError."""
        url = found.get(name)
        try:
            parts = urlsplit(url) if isinstance(url, str) and url.isascii() and url.isprintable() else None
        except ValueError:
            parts = None
        schemes = {"https", urlsplit(self.settings.issuer).scheme}
        if parts is None or parts.scheme not in schemes or not parts.hostname or parts.username or parts.fragment:
            raise ProviderError(f"its {name} is no address that counts: {str(url)[:SHOWN]!r}")
        return str(url)

    # --- a code, and the token for it

    async def token(self, code: str, verifier: str, redirect_uri: str) -> dict[str, Any]:
        """The answer to a code. Raises ProviderError."""
        metadata, settings = await self.metadata(), self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": settings.client_id,
            "code_verifier": verifier,
        }
        headers = {}
        if settings.client_secret and metadata.takes_basic:
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        elif settings.client_secret:
            form["client_secret"] = settings.client_secret
        return await self._ask("POST", metadata.token_endpoint, data=form, headers=headers)

    async def claims(self, answer: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of an answer's ID token, if all of them are as they have to be. Raises ProviderError."""
        token = answer.get("id_token")
        if not isinstance(token, str) or not token.isascii() or len(token) > MOST_TOKEN_BYTES:
            raise ProviderError(f"its answer has no ID token of at most {MOST_TOKEN_BYTES} bytes")
        access_token = answer.get("access_token")
        params = {"nonce": nonce, "access_token": access_token if isinstance(access_token, str) else None}
        for is_again in (False, True):
            keys = await self._key_set(again=is_again)
            try:
                return await asyncio.to_thread(checked_claims, token, keys, self.settings, params)
            except UnknownSigner as error:
                if is_again:
                    raise ProviderError(f"its ID token: {error}") from None
        raise AssertionError("two tries")

    async def _key_set(self, again: bool) -> dict[str, Any]:
        """Its keys as a JWKS; `again`: those that are remembered have not signed a token."""
        metadata = await self.metadata()
        async with self._lock:
            age_s = self._loop.time() - self._keys_s
            if age_s >= FRESH_S or (again and age_s >= AGAIN_S) or not self._keys:
                found = (await self._ask("GET", metadata.jwks_uri)).get("keys")
                keys = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
                self._keys = {"keys": [each for each in keys if each.get("kty") in KINDS]}
                self._keys_s = self._loop.time()
            return self._keys

    async def _ask(self, method: str, url: str, **arguments: Any) -> dict[str, Any]:
        """A JSON object. Raises ProviderError."""
        try:
            async with self._session.request(method, url, allow_redirects=False, **arguments) as response:
                if response.status != 200:
                    raise ProviderError(f"{_host_of(url)} answered with the status {response.status}")
                data = bytearray()
                while len(data) <= MOST_ANSWER_BYTES and (more := await response.content.read(MOST_ANSWER_BYTES)):
                    data += more
            if len(data) > MOST_ANSWER_BYTES:
                raise ProviderError(f"{_host_of(url)} answered with more than {MOST_ANSWER_BYTES} bytes")
            if len(data) > PARSED_AT_ONCE_BYTES:
                return await asyncio.to_thread(parse_object, data)
            return parse_object(data)
        except (ValueError, RecursionError) as error:
            raise ProviderError(f"{_host_of(url)} answered with what is no JSON object") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProviderError(f"{_host_of(url)} gave no answer ({type(error).__name__})") from error


class UnknownSigner(ConsoleError):
    """None of the keys has signed a token."""


def checked_claims(
    token: str, keys: Mapping[str, Any], settings: ProviderSettings, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Raises ProviderError, UnknownSigner."""
    try:
        decoded = jwt.decode(token, KeySet.import_key_set({"keys": keys["keys"]}), algorithms=ALGORITHMS)
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnknownSigner(f"no key of the provider has signed it ({type(error).__name__})") from None
    options = {
        "iss": {"essential": True, "value": settings.issuer},
        "aud": {"essential": True, "value": settings.client_id},
    }
    claims = CodeIDToken(decoded.claims, decoded.header, options, {**params, "client_id": settings.client_id})
    try:
        claims.validate(leeway=LEEWAY_S)
    except (JoseError, ValueError, TypeError, AttributeError) as error:
        raise ProviderError(f"its ID token: {str(error)[:SHOWN]}") from None
    return dict(decoded.claims)


def _host_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
