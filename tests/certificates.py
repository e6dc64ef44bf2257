"""Certificates for tests, made with openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


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
