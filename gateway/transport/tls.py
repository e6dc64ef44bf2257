"""TLS of client connections: OpenSSL in memory, between the transport and the layer above.

The loop's own TLS keeps 256 KiB for each connection, sends when the loop finds time (see ADR 7), and handles all
handshakes at once (docs/adr/0018-tls-and-websocket-are-layers.md).
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from gateway.access.certified import Certified
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from gateway.transport.layers import Above, SteppedLayer
from notify.links.tls import STRANGERS, reason_of

RECORD_BYTES = 16 << 10
RECORDS_AT_ONCE = 64
"""Records that are decrypted between two looks at the clock."""
HANDSHAKES_AT_ONCE = 4
"""In one turn of the loop; each takes a fraction of a millisecond, in which no other client is served."""
MOST_HANDSHAKE_BYTES = 64 << 10
"""Input before a handshake had its turn."""
MOST_HELLO_BYTES = 16 << 10
"""Of a ClientHello, for which OpenSSL allocates room as soon as it knows the length."""
HANDSHAKE = 22
"""Type of a TLS record."""
HELLO_HEAD_BYTES = 9
"""Record header 5, message type 1, message length 3 (RFC 8446, 4 and 5.1)."""
HANDSHAKE_BYTES = 48 << 10
"""Memory of a handshake under way: 46 KB were measured."""

NO_CRL = "; there is no CRL of who issued it, see gateway.tls_client_crl_file"

UserName = Literal["cn", "san"]
NamespaceField = Literal["no", "o", "ou"]


class InTurn:
    """Runs work a few items at a time, with the loop's other work in between."""

    def __init__(self, call_soon: Callable[[Callable[[], object]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_going_on = False

    def add(self, work: Callable[[], object]) -> None:
        self._waiting.append(work)
        if not self._is_going_on:
            self._is_going_on = True
            self._call_soon(self._go_on)

    def _go_on(self) -> None:
        try:
            for _ in range(min(HANDSHAKES_AT_ONCE, len(self._waiting))):
                self._waiting.popleft()()
        finally:
            self._is_going_on = bool(self._waiting)
            if self._waiting:
                self._call_soon(self._go_on)


class TlsLayer(SteppedLayer):
    """The server's end of one TLS connection."""

    __slots__ = (
        "_certified",
        "_connection",
        "_context",
        "_epoch",
        "_has_rest",
        "_has_turn",
        "_hello",
        "_in_turn",
        "_incoming",
        "_is_open",
        "_outgoing",
        "_tls",
        "_user_name",
    )

    def __init__(
        self,
        above: Above,
        connection: Connection,
        context: ssl.SSLContext,
        user_name: UserName,
        in_turn: InTurn,
        certified: Certified,
    ) -> None:
        super().__init__(above, connection.owner)
        self._connection = connection
        self._user_name = user_name
        self._in_turn = in_turn
        self._certified = certified
        self._epoch = certified.epoch
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._context = context
        self._tls: ssl.SSLObject  # made when the client begins: it takes 10 KB
        self._hello: bytes | None = b""  # the first bytes of its ClientHello; None: the handshake has begun
        self._is_open = False
        self._has_rest = False
        self._has_turn = False  # or will have it

    # --- in

    def get_extra_info(self, name: str) -> object:
        """`is_tls`: whether the client's connection has TLS here."""
        return True if name == "is_tls" else super().get_extra_info(name)

    def buffer_updated(self, size: int) -> None:
        if self.is_closing:
            return
        data: bytes | memoryview = memoryview(self.above.get_buffer(size))[:size]
        if self._hello is not None:
            self._hello = data = self._hello + bytes(data)
            if len(data) < HELLO_HEAD_BYTES or not self._begins(data):
                return
        self._incoming.write(data)
        if self._is_open:
            if not self._goes_on:
                self.step()
        elif self._incoming.pending > MOST_HANDSHAKE_BYTES:
            self._refuse("TLS handshake failed: too much was sent before it")
        elif not self._has_turn:
            self._has_turn = True
            self._in_turn.add(self._shake_hands)

    def _begins(self, data: bytes) -> bool:
        """Begin the handshake once the ClientHello's length is known. False: it is refused."""
        record_bytes, hello_bytes = int.from_bytes(data[3:5], "big"), int.from_bytes(data[6:9], "big")
        if data[0] == HANDSHAKE and (record_bytes < 4 or hello_bytes > MOST_HELLO_BYTES):
            self._refuse("TLS handshake failed: its ClientHello is too large, or cut up")
            return False
        self._hello = None
        self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._connection.keep_below(HANDSHAKE_BYTES)
        return not self.is_closing

    def _shake_hands(self) -> None:
        self._has_turn = False
        if self.is_closing:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, OSError) as error:
            self._flush()  # perhaps an alert
            self._refuse(fault_of_client(error))
            return
        certificate = self._tls.getpeercert()
        why_not = self._certified.add(self, certificate, self._epoch) if certificate else ""
        if why_not:
            self._refuse(f"TLS handshake failed: {why_not}")
            return
        self._is_open = True
        self._connection.keep_below(0)
        connection = self._connection
        connection.peer_identity = identity_of(certificate, self._user_name)
        connection.peer_namespace = namespace_of_certificate(certificate, connection.owner.settings.tls_namespace)
        self._flush()
        if self._incoming.pending:
            self.step()

    def certificate(self) -> bytes | None:
        """The client's certificate, DER."""
        return self._tls.getpeercert(binary_form=True)

    def end(self, reason_code: ReasonCode, why: str) -> None:
        self._connection.close(reason_code, why)

    def connection_lost(self, error: Exception | None) -> None:
        self._certified.left(self)
        super().connection_lost(error)

    @property
    def has_rest(self) -> bool:
        """Whether there are complete records; an incomplete one waits for more bytes."""
        return self._has_rest

    @property
    def is_heard(self) -> bool:
        return not self._connection.is_deaf

    def take_some(self, is_over: Callable[[], bool]) -> None:
        """Pass all complete records up together, as far as the buffer holds them."""
        buffer = self.above.get_buffer(0)
        view, filled, count = memoryview(buffer), 0, 0
        self._has_rest = False
        incoming, tls = self._incoming, self._tls
        read: Callable[[int, memoryview], int] = tls.read  # type: ignore[assignment]
        ended = False
        try:
            while (incoming.pending or tls.pending()) and not self.is_closing:
                got = read(RECORD_BYTES, view[filled:])
                if not got:
                    ended = True
                    break
                filled += got
                count += 1
                if len(buffer) - filled < RECORD_BYTES:
                    self.above.buffer_updated(filled)
                    filled = 0
                if count % RECORDS_AT_ONCE == 0 and is_over():
                    self._has_rest = bool(incoming.pending or tls.pending())
                    break
        except ssl.SSLWantReadError:
            """The last record is incomplete."""
        except ssl.SSLError as error:
            self._refuse(f"TLS: {reason_of(error)}")
            return
        if self._outgoing.pending and not self.is_closing:
            self._flush()
        if filled and not self.is_closing:
            self.above.buffer_updated(filled)
        if ended and not self.above.eof_received():
            self.close()

    def _refuse(self, why: str) -> None:
        self._connection.refuse(ProtocolError(ReasonCode.PROTOCOL_ERROR, why))
        self.close()

    # --- out

    def write(self, data: bytes) -> None:
        if self.is_closing or not self._is_open:
            return
        written = self._tls.write(data)
        while written < len(data):  # a record at a time
            written += self._tls.write(memoryview(data)[written:])
        self.send(self._outgoing.read())

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.send(self._outgoing.read())

    def say_goodbye(self) -> None:
        if not self._is_open:
            return
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            """It would wait for the other end's close_notify."""
        self._flush()


def identity_of(certificate: dict[str, Any] | None, user_name: UserName) -> str:
    """The user in a client's verified certificate; empty if there is none."""
    if not certificate:
        return ""
    if user_name == "san":
        names = (value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "email", "URI"))
    else:
        names = (value for rdn in certificate.get("subject", ()) for kind, value in rdn if kind == "commonName")
    return next(iter(names), "")


def namespace_of_certificate(certificate: dict[str, Any] | None, named_by: NamespaceField) -> str:
    """The namespace in a client's verified certificate; empty if it has none.

    A wrong name, or several, are returned as well: they are refused later, with a reason.
    """
    if not certificate or named_by == "no":
        return ""
    wanted = {"o": "organizationName", "ou": "organizationalUnitName"}[named_by]
    return ",".join({value: None for rdn in certificate.get("subject", ()) for kind, value in rdn if kind == wanted})


def fault_of_client(error: Exception) -> str:
    """The reason why a client's handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = NO_CRL if "get certificate CRL" in error.verify_message else ""
        return f"TLS handshake failed: its certificate is not accepted ({error.verify_message}){hint}"
    reason = reason_of(error)
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "TLS handshake failed: it shows no certificate, and gateway.tls_client_certificates is required"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"TLS handshake failed: it does not accept the certificate ({reason})"
    if reason in STRANGERS:
        return f"TLS handshake failed: it speaks no TLS ({reason})"
    return f"TLS handshake failed ({reason})"
