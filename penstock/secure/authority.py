"""A certificate authority, its certificates and its revocations. No files; everything is PEM in bytes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

AUTHORITY_DAYS = 3_650
ISSUED_DAYS = 730
BEFORE = timedelta(minutes=5)
"""Certificates are valid from this long before their creation, because the clocks of devices differ."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its private key."""

    certificate: bytes
    key: bytes
    serial: int


class Authority:
    """A certificate authority, created by new() or from its certificate and key in PEM."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Raises ValueError if they are not a certificate and its key."""
        self._certificate = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("not an EC key")
        if private.public_key() != self._certificate.public_key():
            raise ValueError("not the key of the certificate")
        self._key = private

    @staticmethod
    def new(name: str) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(_common_name(name), _common_name(name), key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        return _issued(builder.sign(key, hashes.SHA256()), key)

    def issue_server(self, hosts: Iterable[str]) -> Issued:
        """Issue a certificate for a server with these names and addresses."""
        names = [_general_name(host) for host in hosts]
        return self._issue(f"server {names[0].value}"[:64], names, ExtendedKeyUsageOID.SERVER_AUTH)

    def issue_client(self, name: str) -> Issued:
        """Issue a certificate for a client with this user name."""
        return self._issue(name, [], ExtendedKeyUsageOID.CLIENT_AUTH)

    def revocation_list(self, old: bytes | None, serials: Sequence[int]) -> bytes:
        """A CRL with the entries of the old one and these. It is valid as long as the authority."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject)
        builder = builder.last_update(now - BEFORE).next_update(self._certificate.not_valid_after_utc)
        revoked = {each.serial_number: each.revocation_date_utc for each in x509.load_pem_x509_crl(old)} if old else {}
        for serial, since in (revoked | dict.fromkeys(serials, now)).items():
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
            builder = builder.add_revoked_certificate(entry.build())
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(own, critical=False)
        builder = builder.add_extension(x509.CRLNumber(int(now.timestamp() * 1_000)), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _issue(self, name: str, names: Sequence[x509.GeneralName], use: ObjectIdentifier) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(_common_name(name), self._certificate.subject, key.public_key(), ISSUED_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(by, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _issued(builder.sign(self._key, hashes.SHA256()), key)


def hosts_of(certificate: bytes) -> list[str]:
    """The names and addresses in a server's certificate. Raises ValueError."""
    found = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in found.value]


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - BEFORE).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Issued(certificate.public_bytes(pem), private, certificate.serial_number)
