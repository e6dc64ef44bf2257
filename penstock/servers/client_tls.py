"""TLS contexts, for clients and for the wire, made again when their files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.settings import GatewaySettings
from notify.links.address import StoreAddress
from notify.settings import WireSettings
from penstock.config.credentials import tls_of_gateway, tls_of_store
from penstock.config.watched_files import WatchedFiles
from penstock.errors import PenstockError
from penstock.servers.client_context import ClientContext, tls_for_clients
from store.audit import Audit, AuditEvent

if TYPE_CHECKING:  # imported only for client certificates: its imports take time
    from gateway.access.certified import Certified

log = logging.getLogger("penstock")


class ClientTls:
    """Owner of the TLS context for new client connections; open ones keep the context they began with."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises PenstockError."""
        self._settings = settings
        crl_file = settings.tls_client_crl_file
        named = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca_file, crl_file)
        self._files = WatchedFiles(named)
        self._current = tls_for_clients(settings)
        if self._current is not None:
            self._current.forget_serials()
        self._certified: Certified | None = None
        self._reading: asyncio.Task[None] | None = None
        self._again = False
        self._is_late = False  # an expired CRL has been reported
        self._audit = Audit()  # start() has the process's

    @property
    def is_set(self) -> bool:
        return self._current is not None

    def start(self, audit: Audit) -> None:
        """From now on reloads are audited."""
        self._audit = audit

    def context(self) -> ssl.SSLContext:
        assert self._current is not None
        return self._current.context

    def judges(self, certified: Certified) -> None:
        """Have these connections judged again when the trusted certificates change."""
        self._certified = certified

    def tick(self) -> None:
        """Reload if a file has changed; call it several times a second."""
        if self._files.have_changed():
            self.reload()
        self._look_for_late_lists()

    def reload(self) -> None:
        """Read the files in a thread. If one is wrong, the old context stays in force until they change again."""
        if not self._files:
            return
        self._again = True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_again())

    async def _read_again(self) -> None:
        while self._again:
            self._again = False
            self._files.note()
            try:
                new = await asyncio.get_running_loop().run_in_executor(None, tls_for_clients, self._settings)
            except PenstockError as error:
                log.error("certificates not reloaded, the old ones stay in force: %s", error)
                self._audit.note(AuditEvent.RELOAD_FAILED, reason=str(error))
                continue
            self._use(new)
            log.info("certificates reloaded: %s", ", ".join(map(str, self._files.files)))
            self._audit.note(AuditEvent.RELOADED, reason="certificates")
        self._reading = None

    def _use(self, new: ClientContext | None) -> None:
        before, self._current = self._current, new
        self._is_late = False
        self._look_for_late_lists()
        if self._certified is None or new is None or new.trust is None or before is None or before.trust is None:
            return
        self._certified.judge_again(partial(new.trust.why_out, before=before.trust), new.forget_serials)

    def _look_for_late_lists(self) -> None:
        """Report an expired CRL. From then on OpenSSL refuses new connections; resumed TLS sessions must be refused as
        well.
        """
        current = self._current
        if self._is_late or current is None or current.trust is None or current.expires is None:
            return
        now = datetime.now(UTC)
        if now < current.expires:
            return
        self._is_late = True
        for issuer in current.trust.expired(now):
            log.error(
                "the CRL of %s has expired: its clients are refused until there is a newer one in %s",
                issuer,
                self._settings.tls_client_crl_file or self._settings.tls_client_ca_file,
            )
        current.forget_sessions()


class TlsFiles:
    """Owner of the TLS context for new connections; open ones keep the context they began with."""

    def __init__(self, files: Iterable[Path | None], load: Callable[[], ssl.SSLContext | None]) -> None:
        """`load` makes the context from the files. Raises the PenstockError of `load`."""
        self._load = load
        self._files = WatchedFiles(files)
        self._audit = Audit()  # start() has the process's
        self._context = load()

    @property
    def is_set(self) -> bool:
        return self._context is not None

    def start(self, audit: Audit) -> None:
        """From now on reloads are audited."""
        self._audit = audit

    def context(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    def tick(self) -> None:
        """Reload if a file has changed; call it several times a second."""
        if self._files.have_changed():
            self.reload()

    def reload(self) -> None:
        """Make the context again. If a file is wrong, the old one stays in force until they change again."""
        if not self._files:
            return
        self._files.note()
        try:
            self._context = self._load()
        except PenstockError as error:
            log.error("certificates not reloaded, the old ones stay in force: %s", error)
            self._audit.note(AuditEvent.RELOAD_FAILED, reason=str(error))
        else:
            log.info("certificates reloaded: %s", ", ".join(map(str, self._files.files)))
            self._audit.note(AuditEvent.RELOADED, reason="certificates")


class WireTls(TlsFiles):
    """The TLS context of a store at a tls:// address."""

    def __init__(self, settings: WireSettings) -> None:
        """Raises PenstockError."""
        files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca_file)
        super().__init__(files, lambda: tls_of_store(settings))


class StoreTls(TlsFiles):
    """The TLS context of a gateway for its store: the certificate that it presents, and the authorities that
    it trusts.
    """

    def __init__(self, address: StoreAddress, settings: GatewaySettings) -> None:
        """Raises PenstockError."""
        files = (settings.store_ca_file, settings.store_certificate, settings.store_key)
        super().__init__(files if address.is_tls else (), lambda: tls_of_gateway(address, settings))
