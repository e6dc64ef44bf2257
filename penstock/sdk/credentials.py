"""A client's credentials for a store: a token, a user with a password, a certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.sdk.errors import BadOption
from store.wire.handshake import VERSIONS
from store.wire.messages import Hello, Role

Password = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Read anew for each connection, so that a certificate's files and a password that is a function may change."""

    token: str = ""
    user: str = ""
    password: Password = ""
    tls: ssl.SSLContext | None = None
    certificate: Path | None = None
    key: Path | None = None
    namespace: str = ""
    on_behalf_of: str = ""
    """The address of the browser for which a console asks."""
    operator_token: str = ""
    """Proves that it may say so, where operators have a token."""

    def check(self) -> None:
        """Raises BadOption."""
        if self.key is not None and self.certificate is None:
            raise BadOption("key= is the private key of a certificate: give cert= as well")
        self.context()

    def hello(self, name: str) -> Hello:
        password = self.password() if callable(self.password) else self.password
        return Hello(
            list(VERSIONS),
            Role.CLIENT,
            name,
            self.token,
            self.user,
            password,
            self.namespace,
            self.on_behalf_of,
            self.operator_token,
        )

    def context(self) -> ssl.SSLContext:
        """Of an address with TLS. Raises BadOption."""
        context = self.tls or ssl.create_default_context()
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            except ssl.SSLError as error:
                raise BadOption(f"cert={self.certificate}: no certificate with its key ({error.reason})") from None
            except OSError as error:
                raise BadOption(f"cert={self.certificate}: {error.strerror}; name a readable file") from None
        return context
