"""A blocking connection to a store for Spark's processes: one request at a time, on another connection if one ends."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from penstock.sdk.address import Address
from penstock.spark.errors import RequestFailed, StoreAway, StoreRefusesUs
from store.errors import HandshakeRefused, WireError
from store.wire.base import Message
from store.wire.frames import Frame, FrameReader, encode
from store.wire.handshake import VERSIONS, ClientHandshake
from store.wire.messages import Failed, Goodbye, Hello, Ping, Pong, Role, Welcome

CONNECT_TIMEOUT_S = 5.0
SILENT_S = 10.0  # without a byte, though it answers Pings: it is gone
IDLE_S = 60.0  # a connection that is not used for so long is made again when it is
PAUSE_S = 0.1  # before the next attempt
READ_BYTES = 1 << 20

M = TypeVar("M", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """Where a store is, how to be let in, and for how long (seconds) to wait for one that is away. Can be pickled."""

    address: Address
    token: str = ""
    ca_file: str | None = None
    patience_s: float = 60.0
    user: str = ""
    password: str = ""
    certificate: str | None = None
    key: str | None = None
    namespace: str = "*"  # that a Hello says; * for names of the log

    def connect(self, name: str = "") -> Connection:
        """`name`: under which the store knows what was published; by default one that nobody else has."""
        return Connection(self, name or f"spark-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}")


class _Line:
    """One connection. A thread says now and then that this side is there."""

    def __init__(self, store: Store, name: str) -> None:
        """Raises StoreAway or StoreRefusesUs."""
        self._url = store.address.url
        self._socket = self._connected(store)
        self._frames: list[Frame] = []
        self._using = threading.Lock()  # the socket, which cannot be read and written at the same time with TLS
        self._heartbeat_s = SILENT_S
        self._used_s = 0.0
        self._closed = threading.Event()
        hello = Hello(
            list(VERSIONS), Role.CLIENT, name, store.token, store.user, store.password, namespace=store.namespace
        )
        handshake = ClientHandshake(hello)
        try:
            self.send_bytes(handshake.greeting)
            while (welcome := handshake.feed(self._received())) is None:
                pass
        except HandshakeRefused as error:
            self._socket.close()
            raise StoreRefusesUs(f"{self._url}: {error}") from None
        except (StoreAway, WireError) as error:
            self._socket.close()
            raise StoreAway(f"{self._url}: {error}") from None
        self.welcome: Welcome = welcome
        self._reader = FrameReader(welcome.max_frame_bytes, Role.STORE)
        self._heartbeat_s = welcome.heartbeat_ms / 1000
        self._take(handshake.rest)
        threading.Thread(target=self._beat, daemon=True).start()

    def _connected(self, store: Store) -> socket.socket:
        address = store.address
        try:
            if address.path:
                found = socket.socket(socket.AF_UNIX)
                found.settimeout(SILENT_S)
                found.connect(address.path)
                return found
            found = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
            found.settimeout(SILENT_S)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.is_tls:
                trusted = ssl.create_default_context(cafile=store.ca_file)
                if store.certificate is not None:
                    trusted.load_cert_chain(store.certificate, store.key, password=lambda: "")
                found = trusted.wrap_socket(found, server_hostname=address.host)
        except ssl.SSLCertVerificationError as error:
            raise StoreRefusesUs(
                f"{self._url}: its certificate is not trusted ({error.verify_message}); give tlsCaFile"
            ) from None
        except ssl.SSLError as error:
            raise StoreRefusesUs(f"{self._url}: {error.reason}; see tlsCertFile, tlsKeyFile and tlsCaFile") from None
        except OSError as error:
            raise StoreAway(f"{self._url}: cannot connect ({error.strerror or error}); is it running?") from None
        return found

    def send_bytes(self, data: bytes) -> None:
        try:
            with self._using:
                self._socket.settimeout(SILENT_S)
                self._socket.sendall(data)
        except OSError as error:
            raise StoreAway(f"{self._url}: connection lost ({error})") from None

    def receive(self) -> Frame:
        """The next answer."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.request_id:
                    return frame
                if isinstance(frame.message, Goodbye):
                    raise StoreAway(f"{self._url}: the store said goodbye: {frame.message.reason}")
            self._take(self._received())

    def _received(self) -> bytes:
        deadline_s = time.monotonic() + SILENT_S
        while True:
            self._used_s = time.monotonic()
            try:
                with self._using:
                    self._socket.settimeout(self._heartbeat_s)
                    data = self._socket.recv(READ_BYTES)
                break
            except TimeoutError:
                if time.monotonic() > deadline_s:
                    raise StoreAway(f"{self._url}: it is silent") from None
                self.send_bytes(encode(Ping()))
            except OSError as error:
                raise StoreAway(f"{self._url}: no answer ({error})") from None
        if not data:
            raise StoreAway(f"{self._url}: the store closed the connection")
        return data

    def _take(self, data: bytes) -> None:
        try:
            frames = self._reader.feed(data)
        except WireError as error:
            raise StoreAway(f"{self._url}: {error}") from None
        for frame in frames:
            if isinstance(frame.message, Ping):
                self.send_bytes(encode(Pong()))
            elif not isinstance(frame.message, Pong):
                self._frames.append(frame)

    def _beat(self) -> None:
        """Whoever waits for an answer says it himself. What nobody uses is closed, as nobody reads what comes."""
        while not self._closed.wait(self._heartbeat_s):
            if time.monotonic() - self._used_s > IDLE_S:
                self.close("nothing to be asked")
                return
            with suppress(StoreAway):
                if not self._using.locked():
                    self.send_bytes(encode(Ping()))

    def close(self, goodbye: str) -> None:
        """`goodbye`: the last word, at which the store forgets this name; but for a producer's."""
        self._closed.set()
        if goodbye:
            with suppress(StoreAway):
                self.send_bytes(encode(Goodbye(goodbye)))
        self._socket.close()


class Connection:
    """Asks a store. Every method raises StoreAway, once it was away for too long; StoreRefusesUs; RequestFailed."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self._line: _Line | None = None
        self._ahead: Message | None = None  # was asked already

    @property
    def welcome(self) -> Welcome:
        """Of the connection there is; one is made if there is none."""
        return self._patiently(lambda: self._connected().welcome)

    def call(self, request: Message, kind: type[M], records: bytes = b"") -> M:
        """What the store answers."""
        return self.call_for_records(request, kind, records)[0]

    def call_for_records(self, request: Message, kind: type[M], records: bytes = b"") -> tuple[M, memoryview]:
        """The same, and the records behind it."""
        frame = self._patiently(lambda: self._answer(request, records))
        if isinstance(frame.message, Failed):
            raise RequestFailed(frame.message.code, f"{self.store.address.url}: {frame.message.message}")
        if not isinstance(frame.message, kind):
            raise RequestFailed("", f"{self.store.address.url}: {type(frame.message).__name__} as an answer")
        return frame.message, frame.records

    def ask_ahead(self, request: Message) -> None:
        """What will be called for next: so that the store answers meanwhile."""
        if self._line is not None and self._ahead is None:
            with suppress(StoreAway):  # to be found out when it is called for
                self._line.send_bytes(encode(request, 1))
                self._ahead = request

    def _answer(self, request: Message, records: bytes) -> Frame:
        line = self._connected()
        if self._ahead is not None and self._ahead != request:
            line.receive()
            self._ahead = None
        if self._ahead is None:
            line.send_bytes(encode(request, 1, records))
        self._ahead = None
        return line.receive()

    def _connected(self) -> _Line:
        if self._line is None:
            self._ahead = None
            self._line = _Line(self.store, self.name)
        return self._line

    def _patiently(self, work: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + self.store.patience_s
        while True:
            try:
                return work()
            except StoreAway:
                self.close()
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(PAUSE_S)

    def close(self, goodbye: str = "") -> None:
        """`goodbye`: the last word, at which the store forgets this name; but for a producer's."""
        if self._line is not None:
            self._line.close(goodbye)
            self._line = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close("it has read what it wanted")
