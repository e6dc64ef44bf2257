"""Which addresses a flow connects to, in whatever form they come."""

import ipaddress

import pytest

from penstock.flows.sinks.http import AddressRefused, judge


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::",
        "100.100.100.200",
        "168.63.129.16",
    ],
)
def test_link_local_addresses_and_metadata_services_are_refused(host: str) -> None:
    with pytest.raises(AddressRefused, match="allow_addresses"):
        judge(host, ())


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7", "192.168.1.1", "::1", "2001:db8::1", "93.184.216.34"])
def test_ordinary_addresses_are_accepted(host: str) -> None:
    judge(host, ())


def test_explicitly_allowed_networks_are_accepted() -> None:
    judge("169.254.10.7", (ipaddress.ip_network("169.254.10.0/24"),))
    judge("::ffff:169.254.10.7", (ipaddress.ip_network("169.254.10.0/24"),))
    with pytest.raises(AddressRefused):
        judge("169.254.11.7", (ipaddress.ip_network("169.254.10.0/24"),))
