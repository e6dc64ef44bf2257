"""A folder with all files of a secure server. Only the owner can read them, and they are never overwritten.

penstock.toml, permissions.toml      what operators read and change
ca.pem, ca.key                       the authority
revoked.pem                          its revocation list
issued.txt                           SERIAL NAME of each client's certificate, for when it is revoked
server.pem, server.key
clients/NAME.pem, clients/NAME.key   of each device, and of the operator
clients/operator.password            with which the operator logs in to the console
passwords                            its hash
tokens/gateway, client, operator     for the store's port, by role
data/                                made by the server
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gateway.auth.passwords import PasswordLine, hashed
from penstock.config.toml_text import toml_value
from penstock.errors import PenstockError, UsageError
from penstock.secure.authority import Authority, Issued, hosts_of
from penstock.secure.texts import OPERATOR, PASSWORDS, PERMISSIONS, SETTINGS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:]+")
MOST_DEVICES = 100_000
PASSWORD_BYTES = 18
"""Of chance: 24 characters."""
ROLES = ("gateway", "client", "operator")
ALWAYS = ("localhost", "127.0.0.1", "::1")


class SecureFolder:
    """Each method writes whole files or raises PenstockError and leaves the existing files unchanged."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))

    # --- at first

    def make(self, hosts: Sequence[str], devices: Sequence[str]) -> list[str]:
        """Fill an empty or missing folder. Returns the names and addresses that the server's certificate is for."""
        for name in devices:
            _check_name(name)
        if not devices or len(set(devices)) != len(devices) or len(devices) > MOST_DEVICES:
            raise UsageError(f"--devices: name 1 to {MOST_DEVICES} devices, each once")
        hosts = list(dict.fromkeys([*(hosts or _names_of_this_machine()), *ALWAYS]))
        for host in hosts:
            if HOST.fullmatch(host) is None:
                raise UsageError(f"--host {host}: not a host name or an address; give the one that clients use")
        self._claim()
        authority = self._make_authority()
        self._write_pair("server", authority.issue_server(hosts))
        (self.path / "clients").mkdir(0o700)
        for name in (OPERATOR, *devices):
            self._issue(authority, name)
        self._make_password(OPERATOR)
        (self.path / "tokens").mkdir(0o700)
        for role in ROLES:
            self._write(f"tokens/{role}", (secrets.token_urlsafe(32) + "\n").encode())
        self._write("permissions.toml", PERMISSIONS.encode())
        self._write("penstock.toml", self._settings().encode())
        return hosts

    def _claim(self) -> None:
        try:
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            found = sorted(os.listdir(self.path))
            if found:
                raise UsageError(
                    f"{self.path}: is not empty ({found[0]}) and nothing in it was changed; choose another folder, or "
                    "change this one with --add-device, --renew or --revoke"
                )
            self.path.chmod(0o700)
        except OSError as error:
            raise PenstockError(f"{self.path}: {error.strerror}; choose a folder that can be written") from None

    def _make_authority(self) -> Authority:
        made = Authority.new(f"Penstock CA {secrets.token_hex(4)}")
        self._write_pair("ca", made)
        authority = Authority(made.certificate, made.key)
        self._write("revoked.pem", authority.revocation_list(None, []))
        return authority

    def _make_password(self, name: str) -> None:
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        self._write(f"clients/{name}.password", f"{password}\n".encode())
        self._write("passwords", f"{PASSWORDS}{PasswordLine(hashed(password)).text(name)}\n".encode())

    def _settings(self) -> str:
        files = {
            "data": "data",
            "server_certificate": "server.pem",
            "server_key": "server.key",
            "ca_certificate": "ca.pem",
            "crl": "revoked.pem",
            "permissions": "permissions.toml",
            "passwords": "passwords",
            **{f"{role}_token": f"tokens/{role}" for role in ROLES},
        }
        return SETTINGS.format(**{name: toml_value(self.path / file) for name, file in files.items()})

    # --- later

    def add(self, name: str) -> None:
        """Add a client with its own certificate."""
        _check_name(name)
        if (self.path / "clients" / f"{name}.pem").exists():
            raise UsageError(
                f"{name}: has a certificate already; make another one with --renew, or revoke it with --revoke"
            )
        self._issue(self._authority(), name)

    def renew(self, name: str) -> None:
        """Replace a client's certificate and key. The old certificate is valid until it expires."""
        self._check_known(name)
        issued = self._authority().issue_client(name)
        self._register(issued, name)
        self._write_pair(f"clients/{name}", issued, replace=True)

    def renew_server(self, hosts: Sequence[str]) -> list[str]:
        """Replace those of the server, which reloads them by itself. The names stay unless others are given."""
        old = self._read("server.pem")
        names = list(dict.fromkeys([*hosts, *ALWAYS])) if hosts else hosts_of(old)
        self._write_pair("server", self._authority().issue_server(names), replace=True)
        return names

    def revoke(self, name: str) -> int:
        """Revoke all certificates of a client, and its password if it has one. Returns the number of certificates."""
        self._check_known(name)
        serials = [int(words[0], 16) for words in self._issued() if words[1:] == [name]]
        crl = self._authority().revocation_list(self._read("revoked.pem"), serials)
        self._write("revoked.pem", crl, replace=True)
        self._forget_password(name)
        for suffix in ("pem", "key", "password"):
            (self.path / "clients" / f"{name}.{suffix}").unlink(missing_ok=True)
        return len(serials)

    def _forget_password(self, name: str) -> None:
        if not (self.path / "passwords").exists():  # an older version made the folder
            return
        lines = self._read("passwords").decode().splitlines(keepends=True)
        kept = [line for line in lines if line.partition(":")[0] != name]
        if kept != lines:
            self._write("passwords", "".join(kept).encode(), replace=True)

    def _authority(self) -> Authority:
        certificate, key = self._read("ca.pem"), self._read("ca.key")
        try:
            return Authority(certificate, key)
        except ValueError as error:
            raise PenstockError(f"{self.path}: ca.pem and ca.key: {error}; put back the files that init made") from None

    def _check_known(self, name: str) -> None:
        if not any(words[1:] == [name] for words in self._issued()):
            raise UsageError(f"{name}: never got a certificate here; make one with --add-device")

    def _issued(self) -> list[list[str]]:
        return [line.split() for line in self._read("issued.txt").decode().splitlines()]

    # --- files

    def _issue(self, authority: Authority, name: str) -> None:
        issued = authority.issue_client(name)
        self._register(issued, name)
        self._write_pair(f"clients/{name}", issued)

    def _register(self, issued: Issued, name: str) -> None:
        """Record a certificate before writing it: an unrecorded certificate cannot be revoked."""
        fd = os.open(self.path / "issued.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{issued.serial:x} {name}\n")

    def _write_pair(self, name: str, issued: Issued, replace: bool = False) -> None:
        self._write(f"{name}.key", issued.key, replace)
        self._write(f"{name}.pem", issued.certificate, replace)

    def _write(self, name: str, data: bytes, replace: bool = False) -> None:
        path = self.path / name
        written = path.with_name(f".{path.name}.new") if replace else path
        if replace:
            with suppress(FileNotFoundError):  # left by one that was killed
                written.unlink()
        try:
            with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                written.rename(path)
        except OSError as error:
            raise PenstockError(f"{path}: {error.strerror}; it was not written") from None

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise PenstockError(
                f"{self.path / name}: {error.strerror}; put it back, or make a folder with `penstock init --secure`"
            ) from None


def _check_name(name: str) -> None:
    if NAME.fullmatch(name) is None or name == OPERATOR:
        raise UsageError(
            f"{name!r}: not a device's name; it has 1 to 64 letters, digits, `.`, `_` and `-`, begins with a letter or "
            f"digit, and is not {OPERATOR}"
        )


def _names_of_this_machine() -> list[str]:
    return [name for name in dict.fromkeys([socket.gethostname(), socket.getfqdn()]) if HOST.fullmatch(name)]
