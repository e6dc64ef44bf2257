"""Certificates for tests, made with openssl, and their revocation."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """PEM files."""

    certificate: Path
    key: Path


def authority(folder: Path, name: str) -> Certificate:
    """One that vouches for others, and for itself."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj", f"/CN={name}", made)
    return made


def vouched_for(folder: Path, name: str, subject: str, by: Certificate, organization: str = "") -> Certificate:
    """A server's. `subject` as openssl wants it: DNS:localhost, or IP:127.0.0.1."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl(
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -addext subjectAltName={subject} "
        f"-addext basicConstraints=critical,CA:FALSE -CA {by.certificate} -CAkey {by.key} -subj",
        f"/CN={name}" + (f"/O={organization}" if organization else ""),
        made,
    )
    return made


def client_certificate(
    folder: Path, name: str, by: Certificate, alternative: str = "", organization: str = ""
) -> Certificate:
    """A client's, with its name as common name."""
    return vouched_for(folder, name, alternative or f"DNS:{name}", by, organization)


def _openssl(arguments: str, subject: str, made: Certificate) -> None:
    command = ["openssl", *arguments.split(), subject, "-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)


def short_lived(folder: Path, name: str, by: Certificate, seconds: float) -> Certificate:
    """A client's that expires within seconds."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=_loaded(by).subject,
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=1),
        not_valid_after=now + timedelta(seconds=seconds),
    )
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    made.certificate.write_bytes(builder.sign(_key(by), hashes.SHA256()).public_bytes(Encoding.PEM))
    made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


def revocation_list(by: Certificate, *revoked: Certificate, seconds: float = 3_600, name: str = "") -> str:
    """A CRL in PEM, to be replaced after so long. `name`: of somebody else than who signs it."""
    now = datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) if name else _loaded(by).subject
    builder = x509.CertificateRevocationListBuilder(
        issuer_name=issuer, last_update=now - timedelta(days=1), next_update=now + timedelta(seconds=seconds)
    )
    for each in revoked:
        serial = _loaded(each).serial_number
        entry = x509.RevokedCertificateBuilder(serial_number=serial, revocation_date=now).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(_key(by), hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def _loaded(made: Certificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.certificate.read_bytes())


def _key(made: Certificate) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(made.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key
