"""Roles by the names in certificates."""

import pytest

from notify.links.tls import CertifiedRoles, names_of

CERTIFICATE = {
    "subject": ((("organizationName", "gw-o"),), (("commonName", "cn"),)),
    "subjectAltName": (("DNS", "gw-1.example"), ("IP Address", "10.0.0.1"), ("URI", "spiffe://x/gw")),
}


def test_names() -> None:
    assert names_of(CERTIFICATE) == ("cn", "gw-1.example", "spiffe://x/gw")
    assert names_of(None) == names_of({}) == ()


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("gw-1", "gw-1", True),
        ("gw-1", "gw-10", False),
        ("gw-*", "gw-1.example", True),
        ("gw-?", "gw-1", False),
        ("gw-[12]", "gw-1", False),
        ("gw-[12]", "gw-[12]", True),
        ("GW-1", "gw-1", False),
        ("*.example", "gw.example.org", False),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    assert CertifiedRoles([f"gateway={pattern}"]).allow("gateway", [name]) is matches


def test_roles() -> None:
    roles = CertifiedRoles(["gateway=a", "gateway=b=c", "operator=o"])
    assert roles.allow("gateway", ["x", "b=c"])
    assert not roles.allow("gateway", [])
    assert not roles.allow("operator", ["a"])
    assert roles.allow("client", [])
    assert CertifiedRoles([]).allow("gateway", [])
