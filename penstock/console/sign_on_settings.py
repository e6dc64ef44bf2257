"""From settings to logins by a provider. Each error names the setting that helps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.config.secret_files import check_secret, read_file
from penstock.config.settings import Settings
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.console.access.sign_on import SignOn

MakeSignOn = Callable[[AsyncExitStack], Awaitable["SignOn"]]


def sign_on_of(settings: Settings) -> MakeSignOn | None:
    """What makes it, in the loop; None: no provider is set. Raises PenstockError."""
    console, auth = settings.console, settings.auth
    if not console.oidc_issuer:
        return None
    if find_spec("authlib") is None:
        raise UsageError("console.oidc_issuer: Authlib is missing; pip install 'penstock[oidc]'")
    if not console.oidc_client_id or "openid" not in console.oidc_scopes:
        raise UsageError("console.oidc_issuer: set console.oidc_client_id too, and have openid in console.oidc_scopes")
    if ":" not in auth.jwt_keys_url_prefix:
        raise UsageError(
            "console.oidc_issuer: a user of the provider could have the name of another user; set "
            "auth.jwt_keys_url_prefix to something with a colon, such as sso:, here and at the store"
        )
    secret = ""
    if console.oidc_client_secret_file is not None:
        check_secret(console.oidc_client_secret_file)
        secret = read_file(console.oidc_client_secret_file, "console.oidc_client_secret_file", True).decode().strip()
        if not secret:
            raise UsageError(f"{console.oidc_client_secret_file}: is empty; write the client's secret into it")

    async def make(closing: AsyncExitStack) -> SignOn:
        from penstock.console.access.provider import Provider, ProviderSettings
        from penstock.console.access.sign_on import SignOn

        provider = Provider(ProviderSettings(console.oidc_issuer, console.oidc_client_id, secret))
        closing.push_async_callback(provider.close)
        claim, prefix = auth.jwt_user_claim, auth.jwt_keys_url_prefix
        return SignOn(provider, console.oidc_name, console.oidc_scopes, claim, prefix)

    return make
