"""Certificates of gateways and clients at their store: who has to show one, and which roles it is good for."""

from __future__ import annotations

import re
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sdk.errors import BadOption, CannotConnect
from penstock.spark.errors import SparkSourceError
from penstock.spark.store_options import store_of
from penstock.sync import Client
from store.wire.log_messages import Topics, TopicsFound
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.interop.test_store_link import Site, complaint, counted
from tests.support.certificates import Certificate, authority, client_certificate
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


class Pair:
    """Certificates of a gateway and of an SDK client, and one of somebody else's authority."""

    def __init__(self, site: Site) -> None:
        self.gateway = client_certificate(site.folder, "gw-1", site.authority)
        self.sdk = client_certificate(site.folder, "sdk-1", site.authority)
        self.foreign = client_certificate(site.folder, "gw-2", authority(site.folder, "foreign"))


def store_with(site: Site, **wire: str) -> StoreProcess:
    settings: dict[str, Any] = {"tls_client_ca_file": site.authority.certificate} | wire
    return site.store(**settings)


def sdk(site: Site, store: StoreProcess, shown: Certificate | None, timeout_s: float = TIMEOUT_S) -> Client:
    url = store.url.replace("tls://", "penstocks://")
    trusted = ssl.create_default_context(cafile=site.authority.certificate)
    certificate, key = (shown.certificate, shown.key) if shown is not None else (None, None)
    return Client(url, tls=trusted, timeout_s=timeout_s, cert=certificate, key=key)


def comes_in(site: Site, store: StoreProcess, shown: Certificate | None) -> None:
    with sdk(site, store, shown) as client:
        client.publish("t", b"x")


def test_both_ends_show_a_certificate(site: Site) -> None:
    made = Pair(site)
    store = store_with(site, tls_roles="gateway=gw-*,client=sdk-*")
    shown = {"store_certificate": made.gateway.certificate, "store_key": made.gateway.key}
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate, **shown)
    wait_until(lambda: "ready mqtt://" in gateway.log_text(), TIMEOUT_S)
    (port,) = re.findall(r"ready mqtt://127\.0\.0\.1:(\d+) ", gateway.log_text())
    with sdk(site, store, made.sdk) as client:
        client.publish("a/b", b"from the SDK")
        PahoClient(int(port)).connect().publish("a/b", [b"from a device"], 1)
        assert [each.payload for each in client.read("a/b", stop="now")] == [b"from the SDK", b"from a device"]
    wait_until(lambda: spark_says(site, store, made.sdk) == ["a/b"], TIMEOUT_S)  # the index is written late


def spark_says(site: Site, store: StoreProcess, shown: Certificate | None) -> list[str]:
    """The topics that a Spark worker finds."""
    files = {"tlscafile": str(site.authority.certificate), "storetimeout": "0"}
    if shown is not None:
        files |= {"tlscertfile": str(shown.certificate), "tlskeyfile": str(shown.key)}
    with store_of(store.url.replace("tls://", "penstocks://"), files).connect() as connection:
        return list(connection.call(Topics("#", ""), TopicsFound).topics)


def test_a_client_without_a_certificate(site: Site) -> None:
    made = Pair(site)
    store = store_with(site)
    for shown in (None, made.foreign):
        with pytest.raises(CannotConnect, match="give cert= and key= one that it accepts"):
            sdk(site, store, shown, timeout_s=2).connect()
        with pytest.raises(SparkSourceError, match="penstocks://"):
            spark_says(site, store, shown)
    assert "it shows no certificate" in store.log_text()
    assert "its certificate is not accepted" in store.log_text()
    comes_in(site, store, made.sdk)


def test_a_gateway_whose_certificate_is_not_accepted(site: Site) -> None:
    made = Pair(site)
    store = store_with(site)
    shown = {"store_certificate": made.foreign.certificate, "store_key": made.foreign.key}
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate, **shown)
    line = complaint(gateway, counted(store, "its certificate is not accepted"))
    assert "set gateway.store_certificate and gateway.store_key" in line


def test_a_certificate_of_the_wrong_role(site: Site) -> None:
    """With the SDK's certificate and no token at all, nobody is a gateway."""
    made = Pair(site)
    store = store_with(site, tls_roles="gateway=gw-*")
    shown = {"store_certificate": made.sdk.certificate, "store_key": made.sdk.key}
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate, **shown)
    line = complaint(gateway, counted(store, "its certificate is not that of a gateway"))
    assert "to one that wire.tls_roles there names" in line
    comes_in(site, store, made.sdk)  # a role that is not named is open


def test_where_certificates_are_optional_a_role_may_need_one(site: Site) -> None:
    made = Pair(site)
    store = store_with(site, tls_client_certificates="optional", tls_roles="gateway=gw-?,gateway=gw-1")
    comes_in(site, store, None)
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate)
    complaint(gateway, counted(store, "its certificate is not that of a gateway"))
    shown = {"store_certificate": made.gateway.certificate, "store_key": made.gateway.key}
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate, **shown)
    wait_until(lambda: "ready mqtt://" in gateway.log_text(), TIMEOUT_S)


def test_files_are_read_again_when_they_change(site: Site) -> None:
    made = Pair(site)
    other = authority(site.folder, "other")
    new = client_certificate(site.folder, "sdk-new", other)
    believed = site.folder / "believed.pem"
    shutil.copy(site.authority.certificate, believed)
    store = site.store(tls_client_ca_file=believed)
    with sdk(site, store, made.sdk) as before:
        _replaced(site, store, before, (made, new))


def _replaced(site: Site, store: StoreProcess, before: Client, certificates: tuple[Pair, Certificate]) -> None:
    (made, new), believed = certificates, site.folder / "believed.pem"
    shutil.copy(site.folder / "other.pem", believed)
    wait_until(lambda: "certificates reloaded" in store.log_text(), TIMEOUT_S)
    comes_in(site, store, new)
    with pytest.raises(CannotConnect):
        sdk(site, store, made.sdk, timeout_s=2).connect()
    before.publish("t", b"what is open goes on")
    believed.write_text("no certificate")
    wait_until(lambda: "certificates not reloaded, the old ones stay in force" in store.log_text(), TIMEOUT_S)
    comes_in(site, store, new)


def test_contradictory_certificate_settings_are_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"wire\.tls_roles needs certificates of peers"):
        site.store(tls_roles="gateway=gw")
    with pytest.raises(RuntimeError, match=r"store_certificate and gateway\.store_key go together"):
        site.gateway("tls://127.0.0.1:7", store_certificate=site.authority.certificate)
    with pytest.raises(BadOption, match="give cert= as well"):
        Client(key=tmp_path / "key")
    with pytest.raises(BadOption, match="no certificate with its key"):
        Client("penstocks://127.0.0.1", cert=site.authority.key, key=site.authority.certificate)
    with pytest.raises(BadOption, match="No such file"):
        Client("penstocks://127.0.0.1", cert=tmp_path / "nothing")
