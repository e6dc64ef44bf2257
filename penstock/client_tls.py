"""The certificate that clients are shown, and those that they have to show: made anew when the files change."""

from __future__ import annotations

import logging
import ssl
import time

from gateway.settings import GatewaySettings
from penstock.credentials import tls_for_clients
from penstock.errors import PenstockError

log = logging.getLogger("penstock")

LOOK_EVERY_S = 1.0

State = tuple[tuple[int, int, int] | None, ...]


class ClientTls:
    """Owner of the context for new connections; those that are open go on with what they began with."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises PenstockError."""
        self._settings = settings
        named = (
            settings.tls_certificate,
            settings.tls_key,
            settings.tls_client_ca_file,
            settings.tls_client_crl_file,
        )
        self._files = [file for file in named if file is not None]
        self._seen = self._state()
        self._looked_s = time.monotonic()
        self._context = tls_for_clients(settings)

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
            self._context = tls_for_clients(self._settings)
        except PenstockError as error:
            log.error("certificates stay as they were: %s", error)
        else:
            log.info("certificates read again: %s", ", ".join(map(str, self._files)))

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
