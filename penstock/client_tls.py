"""Certificates that are shown, and those that are believed: read again when the files change."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gateway.settings import GatewaySettings
from notify.address import StoreAddress
from notify.settings import WireSettings
from penstock.credentials import tls_for_clients, tls_of_gateway, tls_of_store
from penstock.errors import PenstockError
from store.audit import Audit, AuditEvent

log = logging.getLogger("penstock")

LOOK_EVERY_S = 1.0

State = tuple[tuple[int, int, int] | None, ...]


class TlsFiles:
    """Owner of the context for new connections; those that are open go on with what they began with."""

    def __init__(self, files: Iterable[Path | None], load: Callable[[], ssl.SSLContext | None]) -> None:
        """`load` makes the context out of the files. Raises PenstockError, as `load` does."""
        self._load = load
        self.audit = Audit()  # to be replaced once there is one
        self._files = [file for file in files if file is not None]
        self._seen = self._state()
        self._looked_s = time.monotonic()
        self._context = load()

    @property
    def is_set(self) -> bool:
        return self._context is not None

    def context(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    def tick(self) -> None:
        """To be called several times a second: looks at the files now and then."""
        now_s = time.monotonic()
        if self._files and now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            if self._state() != self._seen:
                self.reload()

    def reload(self) -> None:
        """If the files are no good, what was there stays in force until they change again."""
        if not self._files:
            return
        self._seen = self._state()
        try:
            self._context = self._load()
        except PenstockError as error:
            log.error("certificates stay as they were: %s", error)
            self.audit.note(AuditEvent.RELOAD_FAILED, reason=str(error))
        else:
            log.info("certificates read again: %s", ", ".join(map(str, self._files)))
            self.audit.note(AuditEvent.RELOADED, reason="certificates")

    def _state(self) -> State:
        """Of each file, what changes with it. Links are followed: Kubernetes turns one to another folder."""
        found: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                stat = file.stat()
            except OSError:
                found.append(None)
            else:
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)


class ClientTls(TlsFiles):
    """What clients of a gateway see."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises PenstockError."""
        files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca_file)
        super().__init__(files, lambda: tls_for_clients(settings))


class WireTls(TlsFiles):
    """What gateways and clients of a store at a tls:// address see."""

    def __init__(self, settings: WireSettings) -> None:
        """Raises PenstockError."""
        files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca_file)
        super().__init__(files, lambda: tls_of_store(settings))


class StoreTls(TlsFiles):
    """What a gateway shows to its store, and believes of it."""

    def __init__(self, address: StoreAddress, settings: GatewaySettings) -> None:
        """Raises PenstockError."""
        files = (settings.store_ca_file, settings.store_certificate, settings.store_key)
        super().__init__(files if address.is_tls else (), lambda: tls_of_gateway(address, settings))
