"""What mqtts:// and wss:// are secured with, out of the files that settings name."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.auth.errors import AuthError
from gateway.settings import GatewaySettings
from penstock.config.credentials import server_context
from penstock.config.secret_files import read_file
from penstock.errors import PenstockError, UsageError

if TYPE_CHECKING:  # importing these takes time, which who has no certificates of clients need not spend
    from cryptography.x509 import CertificateRevocationList

    from gateway.auth.revocation import Trust


@dataclass(slots=True)
class ClientContext:
    """What mqtts:// and wss:// are secured with."""

    context: ssl.SSLContext
    trust: Trust | None  # None: clients show no certificates
    expires: datetime | None  # its first CRL

    def forget_serials(self) -> None:
        """OpenSSL has them: this process need not."""
        if self.trust is not None:
            self.trust = self.trust.without_serials()

    def forget_sessions(self) -> None:
        """Who comes back to a TLS session shakes hands in full, so that its certificate is looked at."""
        self.context.options |= ssl.OP_NO_TICKET
        self.context.num_tickets = 0


def tls_for_clients(settings: GatewaySettings) -> ClientContext | None:
    """None if nothing is set for it. Raises PenstockError."""
    certificate, key, ca_file = settings.tls_certificate, settings.tls_key, settings.tls_client_ca_file
    asks = settings.tls_client_certificates
    if (ca_file is None) != (asks == "no"):
        what = "optional or required" if asks == "no" else "the file with who vouches for them"
        missing = "gateway.tls_client_certificates" if asks == "no" else "gateway.tls_client_ca_file"
        raise UsageError(f"certificates of clients: {missing} is to be {what}")
    if settings.tls_client_crl_file is not None and ca_file is None:
        raise UsageError("gateway.tls_client_crl_file is for certificates of clients; set gateway.tls_client_ca_file")
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("gateway.tls_certificate and gateway.tls_key go together; set both")
    context = server_context(certificate, key, "gateway.tls_certificate", "gateway.tls_key")
    context.num_tickets = 1  # each costs a handshake some 5 % more; a device resumes one session at a time
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if ca_file is None:
        return ClientContext(context, None, None)
    trust = _verify_clients(context, ca_file, settings)
    context.verify_mode = ssl.CERT_REQUIRED if asks == "required" else ssl.CERT_OPTIONAL
    return ClientContext(context, trust, trust.expires)


def _verify_clients(context: ssl.SSLContext, ca_file: Path, settings: GatewaySettings) -> Trust:
    """A CRL counts where it is: in a file of its own, or in that of the authorities."""
    from gateway.auth.revocation import make_trust, parse_authorities, parse_crls

    text = read_file(ca_file, "gateway.tls_client_ca_file").decode(errors="replace")
    try:
        context.load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise PenstockError(
            f"{ca_file}: no certificates in PEM ({error.reason}); see gateway.tls_client_ca_file"
        ) from None
    crl_file = settings.tls_client_crl_file
    file = ca_file
    try:
        authorities, crls = parse_authorities(text), parse_crls(text)
        if crl_file is not None:
            file = crl_file
            listed = parse_crls(read_file(crl_file, "gateway.tls_client_crl_file").decode(errors="replace"))
            if not listed:
                raise AuthError(
                    "no CRL in PEM; see gateway.tls_client_crl_file (`openssl crl -inform DER` makes PEM of DER)"
                )
            crls += listed
        trust = make_trust(authorities, crls)
    except AuthError as error:
        raise PenstockError(f"{file}: {error}") from None
    if crls:
        _load_crls(context, crls)
        is_leaf = settings.tls_client_crl_check == "leaf"
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF if is_leaf else ssl.VERIFY_CRL_CHECK_CHAIN
    if settings.tls_client_strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    return trust


def _load_crls(context: ssl.SSLContext, crls: Iterable[CertificateRevocationList]) -> None:
    """OpenSSL takes them from a file only: not from the one that was read here, which may be another one by now."""
    from cryptography.hazmat.primitives.serialization import Encoding

    in_memory = os.fdopen(os.memfd_create("crls"), "wb") if hasattr(os, "memfd_create") else None
    with in_memory or tempfile.NamedTemporaryFile() as file:
        for crl in crls:
            file.write(crl.public_bytes(Encoding.PEM))
        file.flush()
        context.load_verify_locations(f"/proc/self/fd/{file.fileno()}" if in_memory else file.name)
