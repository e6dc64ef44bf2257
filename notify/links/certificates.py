"""Which roles a peer may have by the certificate that it showed."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

KINDS = ("DNS", "email", "URI")


class CertifiedRoles:
    """The roles by certificate of `wire.tls_roles`. A role that it does not name is open to every peer."""

    def __init__(self, rules: Iterable[str]) -> None:
        """`rules`: ROLE=NAME, in which * stands for any characters."""
        self._patterns: dict[str, list[str]] = {}
        for rule in rules:
            role, _, pattern = rule.partition("=")
            self._patterns.setdefault(role, []).append(pattern)

    def allow(self, role: str, names: Iterable[str]) -> bool:
        """`names`: those of the peer's certificate."""
        patterns = self._patterns.get(role)
        return patterns is None or any(_matches(name, pattern) for name in names for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    escaped = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatchcase(name, escaped)


def names_of(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """The common name and the alternative names of a certificate that was verified; none without one."""
    if not certificate:
        return ()
    common = [value for rdn in certificate.get("subject", ()) for kind, value in rdn if kind == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in KINDS]
    return (*common, *others)
