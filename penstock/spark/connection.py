"""The connection of Spark's processes to a store: blocking, one request at a time, made again if it ends."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from penstock.sdk.address import Address
from penstock.spark.errors import RequestFailed, StoreRefusesUs, StoreUnreachable
from store.errors import HandshakeRefused, StoreAway, WireError
from store.wire.base import WireMessage
from store.wire.client.blocking_link import BlockingLink, BlockingTimes, connect
from store.wire.client.request_errors import RequestErrors
from store.wire.frames import Frame
from store.wire.handshake import VERSIONS
from store.wire.messages import Hello, RefusedReason, Role, Welcome

CONNECT_TIMEOUT_S = 5.0
SILENT_S = 10.0  # a store that sends no byte for so long, and no answer to a Ping, is away
IDLE_S = 60.0  # a connection without a request for so long is closed; the next request makes another one
PAUSE_S = 0.1  # before the next attempt

M = TypeVar("M", bound=WireMessage)
T = TypeVar("T")


@dataclass(frozen=True)
class StoreAccess:
    """Where a store is, the credentials for it, and how many seconds to wait for one that is away. Can be pickled."""

    address: Address
    token: str = ""
    ca_file: str | None = None
    patience_s: float = 60.0
    user: str = ""
    password: str = ""
    certificate: str | None = None
    key: str | None = None
    namespace: str = "*"  # of the Hello; * for the names of the log

    def connect(self, name: str = "") -> SparkConnection:
        """`name`: under which the store knows what was published; by default a new one."""
        return SparkConnection(self, name or f"spark-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}")

    def link(self, name: str) -> BlockingLink:
        """One connection that the store has let in. Raises StoreUnreachable or StoreRefusesUs."""
        url = self.address.url
        times = BlockingTimes(CONNECT_TIMEOUT_S, SILENT_S, IDLE_S)
        hello = Hello(list(VERSIONS), Role.CLIENT, name, self.token, self.user, self.password, namespace=self.namespace)
        try:
            return connect(self.address, self._trusted if self.address.is_tls else None, times, hello)
        except ssl.SSLCertVerificationError as error:
            text = f"its certificate is not trusted ({error.verify_message}); give tlsCaFile"
            raise StoreRefusesUs(f"{url}: {text}") from None
        except ssl.SSLError as error:
            raise StoreRefusesUs(f"{url}: {error.reason}; see tlsCertFile, tlsKeyFile and tlsCaFile") from None
        except OSError as error:
            raise StoreUnreachable(f"{url}: cannot connect ({error.strerror or error}); is it running?") from None
        except HandshakeRefused as error:
            no_leader = error.reason == RefusedReason.NOT_LEADER
            raise (StoreUnreachable if no_leader else StoreRefusesUs)(f"{url}: {error}") from None
        except (StoreAway, WireError) as error:
            raise StoreUnreachable(f"{url}: {error}") from None

    def _trusted(self) -> ssl.SSLContext:
        trusted = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate is not None:
            trusted.load_cert_chain(self.certificate, self.key, password=lambda: "")
        return trusted


class SparkConnection:
    """Asks a store. Every method raises StoreUnreachable, StoreRefusesUs or RequestFailed."""

    def __init__(self, store: StoreAccess, name: str) -> None:
        self.store = store
        self.name = name
        self._url = store.address.url
        self._errors = RequestErrors(lambda code, message: RequestFailed(code, f"{self._url}: {message}"))
        self._link: BlockingLink | None = None
        self._ahead: WireMessage | None = None  # a request that was sent, and whose answer was not waited for

    @property
    def welcome(self) -> Welcome:
        """The Welcome of the current connection; without one, a connection is made."""
        return self._patiently(lambda: self._connected().welcome)

    def call(self, request: WireMessage, kind: type[M], records: bytes = b"") -> M:
        """Ask, and wait for the answer."""
        return self.call_for_records(request, kind, records)[0]

    def call_for_records(self, request: WireMessage, kind: type[M], records: bytes = b"") -> tuple[M, memoryview]:
        """Ask, and wait for the answer and the records after it."""
        frame = self._patiently(lambda: self._answer(request, records))
        try:
            return self._errors.checked(frame.message, kind), frame.records
        except WireError as error:
            raise RequestFailed("", f"{self._url}: {error}") from None

    def ask_ahead(self, request: WireMessage) -> None:
        """Send the request that will be called for next, so that the store answers meanwhile."""
        if self._link is not None and self._ahead is None:
            with suppress(StoreAway):  # the call finds out
                self._link.send(request, 1)
                self._ahead = request

    def _answer(self, request: WireMessage, records: bytes) -> Frame:
        link = self._connected()
        if self._ahead is not None and self._ahead != request:
            link.receive()
            self._ahead = None
        if self._ahead is None:
            link.send(request, 1, records)
        self._ahead = None
        return link.receive()

    def _connected(self) -> BlockingLink:
        if self._link is None:
            self._ahead = None
            self._link = self.store.link(self.name)
        return self._link

    def _patiently(self, work: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + self.store.patience_s
        while True:
            try:
                return work()
            except StoreUnreachable:
                self.close()
                if time.monotonic() > deadline_s:
                    raise
            except (StoreAway, WireError) as error:
                self.close()
                if time.monotonic() > deadline_s:
                    raise StoreUnreachable(f"{self._url}: {error}") from None
            time.sleep(PAUSE_S)

    def close(self, goodbye: str = "") -> None:
        """Close the connection. After a `goodbye` the store forgets this name at once, except a producer's."""
        if self._link is not None:
            self._link.close(goodbye)
            self._link = None

    def __enter__(self) -> SparkConnection:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close("it has read what it wanted")
