"""The connection of a command, or of the tier, to a store: it asks one thing at a time."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from types import TracebackType
from typing import NoReturn, TypeVar

from notify.links.address import StoreAddress
from penstock.errors import ConnectionFailed, PenstockError
from store.errors import HandshakeRefused, StoreAway, WireError
from store.wire.base import WireMessage
from store.wire.client.blocking_link import BlockingTimes, connect
from store.wire.client.request_errors import RequestErrors
from store.wire.handshake import VERSIONS
from store.wire.messages import FailureCode, Hello, Role

CONNECT_S, SILENT_S = 10.0, 10.0
ERRORS = RequestErrors(
    lambda _, message: PenstockError(message),
    {FailureCode.NOT_PERMITTED: lambda _, message: PenstockError(f"not permitted: {message}")},
)

M = TypeVar("M", bound=WireMessage)


class StoreClient:
    """A peer of a store, of role `client` or `operator`. Every method raises PenstockError, in one line."""

    def __init__(
        self,
        address: StoreAddress,
        token: str,
        tls: ssl.SSLContext | None,
        role: Role = Role.CLIENT,
        idle_s: float | None = None,
    ) -> None:
        """`tls`: which certificates to trust, at an address with TLS. `idle_s`: see BlockingTimes."""
        times = BlockingTimes(CONNECT_S, SILENT_S, idle_s)
        self._url = address.url
        hello = Hello(list(VERSIONS), role, _own_name(), token, namespace="*")
        try:
            self._link = connect(address, None if tls is None else lambda: tls, times, hello)
        except ssl.SSLCertVerificationError as error:
            raise ConnectionFailed(
                f"{address.url}: its certificate is not trusted ({error.verify_message}); name the authority that "
                "signed it in gateway.store_ca_file"
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConnectionFailed(
                f"{address.url}: cannot connect ({reason}); start `penstock store`, or name another with --store"
            ) from None
        except (HandshakeRefused, StoreAway, WireError) as error:
            self._failed(error)

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    @property
    def version(self) -> int:
        """Of the wire that the store speaks."""
        return self._link.welcome.version

    @property
    def log_identity(self) -> bytes:
        """Of the store's log; empty: it does not say."""
        return self._link.welcome.log_identity

    @property
    def address(self) -> tuple[str, int] | str:
        """By which message ids name the store: as it says, IP:PORT, or where it is reached; empty: a Unix socket."""
        return self._link.welcome.address or self._link.peer or ""

    def close(self) -> None:
        self._link.close("done")

    def call(self, request: WireMessage, kind: type[M]) -> M:
        """Ask, and wait for the answer."""
        return self.ask(request, kind)[0]

    def ask(self, request: WireMessage, kind: type[M], records: bytes = b"") -> tuple[M, memoryview]:
        """As call(); with records after the request, and those that follow the answer."""
        try:
            self._link.send(request, 1, records)
            frame = self._link.receive()
            return ERRORS.checked(frame.message, kind), frame.records
        except (StoreAway, WireError) as error:
            self._failed(error)

    def tell(self, message: WireMessage) -> None:
        """Send a message that has no answer."""
        try:
            self._link.send(message)
        except StoreAway as error:
            self._failed(error)

    def _failed(self, error: Exception) -> NoReturn:
        raise ConnectionFailed(f"{self._url}: {error}") from None


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
