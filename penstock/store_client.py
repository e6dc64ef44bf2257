"""A connection to a store for commands that ask a few things and end: blocking, one request at a time."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from notify.links.address import StoreAddress
from notify.links.sockets import unix_address
from penstock.errors import ConnectionFailed, PenstockError
from store.errors import HandshakeRefused, WireError
from store.wire.base import Message
from store.wire.client.session import PeerSession
from store.wire.frames import Frame, encode
from store.wire.handshake import VERSIONS
from store.wire.messages import Failed, FailureCode, Goodbye, Hello, Role

TIMEOUT_S = 10.0
READ_BYTES = 1 << 18

M = TypeVar("M", bound=Message)


class StoreClient:
    """A peer of a store, of role `client` or `operator`. Every method raises PenstockError, in one line."""

    def __init__(self, address: StoreAddress, token: str, tls: ssl.SSLContext | None, role: Role = Role.CLIENT) -> None:
        """`tls`: whom to trust, at an address with TLS."""
        self._url = address.url
        self._socket = self._connected(address, tls)
        self._frames: list[Frame] = []
        self._session = PeerSession(Hello(list(VERSIONS), role, _own_name(), token, namespace="*"), self._send)
        try:
            self._send(self._session.greeting)
            while self._session.welcome is None:
                self._take()
        except ConnectionFailed:
            self._socket.close()
            raise

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        with suppress(OSError):
            self._socket.sendall(encode(Goodbye("done")))
        self._socket.close()

    def _connected(self, address: StoreAddress, tls: ssl.SSLContext | None) -> socket.socket:
        try:
            if address.path:
                found = socket.socket(socket.AF_UNIX)
                found.settimeout(TIMEOUT_S)
                with unix_address(Path(address.path)) as path:
                    found.connect(path)
                return found
            found = socket.create_connection((address.host, address.port), TIMEOUT_S)
            if tls is not None:
                found = tls.wrap_socket(found, server_hostname=address.host)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConnectionFailed(
                f"{address.url}: cannot connect ({reason}); start `penstock store`, or name another with --store"
            ) from None
        return found

    def call(self, request: Message, kind: type[M]) -> M:
        """What the store answers."""
        self._send(encode(request, 1))
        while True:
            for frame in self._frames:
                if frame.request_id:
                    self._frames.remove(frame)
                    return self._checked(frame.message, kind)
            self._frames.clear()
            if self._session.farewell:
                raise ConnectionFailed(f"{self._url}: {self._session.farewell}")
            self._take()

    def tell(self, message: Message) -> None:
        """What has no answer."""
        self._send(encode(message))

    def _checked(self, message: Message, kind: type[M]) -> M:
        if isinstance(message, Failed):
            is_bare = message.code is FailureCode.NOT_PERMITTED
            raise PenstockError(f"not permitted: {message.message}" if is_bare else message.message)
        if not isinstance(message, kind):
            raise ConnectionFailed(f"{self._url}: the store answered with {type(message).__name__}")
        return message

    def _take(self) -> None:
        """Wait for what comes next."""
        data = self._received()
        try:
            self._frames += [each for each in self._session.feed(data) if isinstance(each, Frame)]
        except (HandshakeRefused, WireError) as error:
            raise ConnectionFailed(f"{self._url}: {error}") from None

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionFailed(f"{self._url}: connection lost ({error})") from None

    def _received(self) -> bytes:
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError as error:
            raise ConnectionFailed(f"{self._url}: no answer ({error})") from None
        if not data:
            raise ConnectionFailed(f"{self._url}: the store closed the connection")
        return data


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
