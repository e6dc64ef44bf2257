"""Client certificates that no longer count: revoked by a CRL (RFC 5280), or issued by an authority no longer
trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from gateway.auth.errors import AuthError

BEGIN_CRL = "-----BEGIN X509 CRL-----"
CRL = re.compile(rf"{BEGIN_CRL}.*?-----END X509 CRL-----", re.DOTALL)
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Trust:
    """The trusted authorities of client certificates, and the revoked certificates."""

    authorities: tuple[x509.Certificate, ...] = ()
    crls: tuple[x509.CertificateRevocationList, ...] = ()
    revoked: Mapping[bytes, frozenset[int]] = field(default_factory=dict)
    """Revoked serial numbers by issuer name (DER)."""

    @property
    def expires(self) -> datetime | None:
        """When the first of the CRLs expires; None: no CRL says so."""
        return min((each.next_update_utc for each in self.crls if each.next_update_utc is not None), default=None)

    def expired(self, now: datetime) -> list[str]:
        """Issuers of CRLs that have expired."""
        return [
            each.issuer.rfc4514_string()
            for each in self.crls
            if each.next_update_utc is not None and each.next_update_utc <= now
        ]

    def without_serials(self) -> Trust:
        """The same without the serial numbers, which are needed only while connections are checked: OpenSSL checks new
        ones.
        """
        return Trust(self.authorities, self.crls)

    def why_out(self, certificate_der: bytes, before: Trust) -> str:
        """The reason why a certificate that counted `before` no longer does; empty if it does."""
        certificate = x509.load_der_x509_certificate(certificate_der)
        issuer = certificate.issuer.public_bytes()
        if certificate.serial_number in self.revoked.get(issuer, ()):
            return "its certificate is revoked"
        if self.authorities == before.authorities:
            return ""
        if not set(self.authorities) & set(before.authorities):
            is_out = not _issued(certificate, self.authorities)
        else:  # it may have shown an intermediate certificate: that is checked when it reconnects
            is_out = _issued(certificate, before.authorities) and not _issued(certificate, self.authorities)
        return "no trusted authority issued its certificate any more" if is_out else ""


def _issued(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return True
    return False


def parse_authorities(text: str) -> tuple[x509.Certificate, ...]:
    """The certificates in a PEM file. Raises AuthError."""
    try:
        return tuple(x509.load_pem_x509_certificate(found[0].encode()) for found in CERTIFICATE.finditer(text))
    except ValueError as error:
        raise AuthError(f"a damaged certificate: {error}") from None


def parse_crls(text: str) -> tuple[x509.CertificateRevocationList, ...]:
    """The CRLs in a PEM file. Raises AuthError if one is damaged or incomplete."""
    found = [each[0].encode() for each in CRL.finditer(text)]
    if len(found) != text.count(BEGIN_CRL):
        raise AuthError("a CRL in it is not whole")
    try:
        return tuple(x509.load_pem_x509_crl(each) for each in found)
    except ValueError as error:
        raise AuthError(f"a damaged CRL: {error}") from None


def make_trust(authorities: tuple[x509.Certificate, ...], crls: tuple[x509.CertificateRevocationList, ...]) -> Trust:
    """Build a Trust; takes microseconds per serial number. Raises AuthError for a CRL that its issuer did not sign."""
    revoked: dict[bytes, frozenset[int]] = {}
    for crl in crls:
        issuer = crl.issuer.public_bytes()
        named = [each for each in authorities if each.subject.public_bytes() == issuer]
        if named and not any(_signed(crl, each) for each in named):
            raise AuthError(f"the CRL of {crl.issuer.rfc4514_string()} is not signed by it")
        revoked[issuer] = revoked.get(issuer, frozenset()) | {each.serial_number for each in crl}
    return Trust(authorities, crls, revoked)


def _signed(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False
