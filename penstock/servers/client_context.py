"""Builds the TLS context of mqtts:// and wss:// from the files that settings name."""

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

if TYPE_CHECKING:  # imported only for client certificates: importing takes time
    from cryptography.x509 import CertificateRevocationList

    from gateway.auth.revocation import Trust


@dataclass(slots=True)
class ClientContext:
    """The TLS context of mqtts:// and wss://."""

    context: ssl.SSLContext
    trust: Trust | None  # None: clients present no certificates
    expires: datetime | None  # when the first CRL expires

    def forget_serials(self) -> None:
        """Drop the serial numbers, which OpenSSL has as well."""
        if self.trust is not None:
            self.trust = self.trust.without_serials()

    def forget_sessions(self) -> None:
        """Have clients that resume a TLS session do a full handshake, so that their certificates are checked."""
        self.context.options |= ssl.OP_NO_TICKET
        self.context.num_tickets = 0


def tls_for_clients(settings: GatewaySettings) -> ClientContext | None:
    """The context; None without a certificate in the settings. Raises PenstockError."""
    certificate, key, ca_file = settings.tls_certificate, settings.tls_key, settings.tls_client_ca_file
    asks = settings.tls_client_certificates
    if (ca_file is None) != (asks == "no"):
        what = "optional or required" if asks == "no" else "the file of the authorities that issue them"
        missing = "gateway.tls_client_certificates" if asks == "no" else "gateway.tls_client_ca_file"
        raise UsageError(f"client certificates: set {missing} to {what}")
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
    """Load authorities and CRLs. CRLs may be in a file of their own, or in that of the authorities."""
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
    """Load CRLs, which OpenSSL reads only from a file: not from the file read before, which may have changed since."""
    from cryptography.hazmat.primitives.serialization import Encoding

    in_memory = os.fdopen(os.memfd_create("crls"), "wb") if hasattr(os, "memfd_create") else None
    with in_memory or tempfile.NamedTemporaryFile() as file:
        for crl in crls:
            file.write(crl.public_bytes(Encoding.PEM))
        file.flush()
        context.load_verify_locations(f"/proc/self/fd/{file.fileno()}" if in_memory else file.name)
