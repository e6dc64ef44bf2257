"""TLS between a store and its gateways: handshakes that fail and what they mean to people, and roles by certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from fnmatch import fnmatchcase
from typing import Any, Protocol

from notify.links.sockets import listening_socket
from store.files.descriptors import first_of_operators

KINDS = ("DNS", "email", "URI")
RETRY_S = 0.1
STRANGERS = {"HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "BAD_LENGTH", "RECORD_LAYER_FAILURE"}
"""What OpenSSL says of bytes that are no TLS."""
WANTS_CERTIFICATE = (
    "if it asks for certificates, set gateway.store_certificate and gateway.store_key to one for which "
    "wire.tls_client_ca_file there vouches"
)


class CertifiedRoles:
    """The roles by certificate of `wire.tls_roles`. A role that it does not name is open to every peer."""

    def __init__(self, rules: Iterable[str]) -> None:
        """`rules`: ROLE=NAME, in which * stands for any characters."""
        self._patterns: dict[str, list[str]] = {}
        for rule in rules:
            role, _, pattern = rule.partition("=")
            self._patterns.setdefault(role, []).append(pattern)

    def allow(self, role: str, names: Iterable[str]) -> bool:
        """`names`: those of the peer's certificate."""
        patterns = self._patterns.get(role)
        return patterns is None or any(_matches(name, pattern) for name in names for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    escaped = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatchcase(name, escaped)


def names_of(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """The common name and the alternative names of a certificate that was verified; none without one."""
    if not certificate:
        return ()
    common = [value for rdn in certificate.get("subject", ()) for kind, value in rdn if kind == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in KINDS]
    return (*common, *others)


class TlsListenerOwner(Protocol):
    """The server that serves the connections of a TlsListener."""

    def arrives(self) -> asyncio.Protocol:
        """The protocol of a new connection."""

    def not_secure(self, address: object, why: str) -> None:
        """A peer at this address does not get there, for this reason."""


class TlsListener:
    """Accepts connections whose TLS handshake succeeds. The loop's own servers do not say why one fails, nor whose."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        timeout_s: float,
        owner: TlsListenerOwner,
    ) -> None:
        """`context` is asked for each connection."""
        self._context = context
        self._timeout_s = timeout_s
        self._owner = owner
        self._descriptors = first_of_operators()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sockets: list[socket.socket] = []

    async def listen(self, host: str, port: int, backlog: int) -> None:
        """Listen at all addresses of a host. Raises OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self.sockets.append(listening_socket(family, address, backlog))
        except OSError:
            self.close()
            raise
        for each in self.sockets:
            self._do(self._accept(each))

    def close(self) -> None:
        """Accept no new connections; those that are open stay."""
        for task in self._tasks:
            task.cancel()
        for each in self.sockets:
            each.close()

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listening)
            except OSError:  # it left already, or this process has no descriptors to spare for now
                await asyncio.sleep(RETRY_S)
                continue
            if accepted.fileno() >= self._descriptors:
                self._owner.not_secure(address, "all descriptors for clients are in use; raise the limit (ulimit -n)")
                accepted.close()
                continue
            self._do(self._shake_hands(accepted, address))

    async def _shake_hands(self, accepted: socket.socket, address: object) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._owner.arrives, accepted, ssl=self._context(), ssl_handshake_timeout=self._timeout_s
            )
        except (OSError, EOFError) as error:
            self._owner.not_secure(address, fault_of_peer(error))
            accepted.close()


def fault_of_peer(error: Exception) -> str:
    """The reason why a peer's handshake with a store failed."""
    reason = reason_of(error)
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "TLS handshake failed: it shows no certificate; set gateway.store_certificate there"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS handshake failed: its certificate is not accepted ({error.verify_message})"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"TLS handshake failed: it does not accept the certificate ({reason}); see gateway.store_ca_file there"
    if reason in STRANGERS:
        return f"TLS handshake failed: it speaks no TLS ({reason})"
    if isinstance(error, ConnectionError):
        return "TLS handshake failed: it left in the middle; perhaps it does not accept the certificate"
    return f"TLS handshake failed ({reason})"


def fault_of_store(error: ssl.SSLError) -> str:
    """The reason why a gateway's handshake with its store failed, and what mends it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        if "mismatch" in why or "not valid for" in why:
            remedy = "use a name that it is for in gateway.store, or give the store another (wire.tls_certificate)"
        elif "expired" in why or "not yet valid" in why:
            remedy = "give the store another (wire.tls_certificate), or set the clock right"
        else:
            remedy = "name the file with who vouches for it in gateway.store_ca_file"
        return f"the store's certificate is not accepted ({why.rstrip('.')}); {remedy}"
    reason = reason_of(error)
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"it does not accept this gateway's certificate ({reason}); {WANTS_CERTIFICATE}"
    if reason in STRANGERS:
        return f"it speaks no TLS ({reason}); use tcp:// in gateway.store, or tls:// in the store's wire.listen"
    return f"TLS handshake failed ({reason})"


def reason_of(error: Exception) -> str:
    """The error's reason in the words of OpenSSL, or of the system."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return str(error.reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "the connection was closed"
