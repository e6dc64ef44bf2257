"""Certificates of clients that count no more: revoked, expired, of an unknown authority."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.mqtt.codec import decode, encode
from gateway.mqtt.packets import Connect, Disconnect
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ServerFactory
from tests.interop.test_listeners import wait_for_log
from tests.interop.test_tls import listener_settings, port_of, refused, session, trusting
from tests.support.certificates import (
    Certificate,
    authority,
    client_certificate,
    revocation_list,
    short_lived,
)
from tests.support.mqtt_packet_client import until
from tests.support.server_process import PenstockServer

pytestmark = pytest.mark.topologies("one process", "two gateways")
ONE = pytest.mark.topologies("one process")

Start = Callable[..., PenstockServer]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture
def crl(tmp_path: Path) -> Path:
    return tmp_path / "crl.pem"


@pytest.fixture
def settings(tmp_path: Path, ca: Certificate, crl: Path) -> dict[str, object]:
    asks = {
        "gateway.tls_client_certificates": "required",
        "gateway.tls_client_ca_file": tmp_path / "ca.pem",
        "gateway.tls_client_crl_file": crl,
    }
    shutil.copy(ca.certificate, tmp_path / "ca.pem")
    crl.write_text(revocation_list(ca))
    return listener_settings(tmp_path, ca) | asks


def replace(file: Path, text: str) -> None:
    new = file.with_name("new")
    new.write_text(text)
    os.replace(new, file)


def is_refused(server: PenstockServer, context: ssl.SSLContext) -> bool:
    try:
        with session(server, context):
            return False
    except OSError:
        return True


def disconnected_with(client: ssl.SSLSocket) -> ReasonCode | None:
    data = b""
    while more := client.recv(100):
        data += more
    if not data:
        return None
    packet = decode(data[0], data[2:], 5)
    assert isinstance(packet, Disconnect)
    return packet.reason_code


def version_5(server: PenstockServer, context: ssl.SSLContext, name: str) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port_of(server)), 20)
    client = context.wrap_socket(plain, server_hostname="localhost")
    client.sendall(encode(Connect(name, 5), 5))
    assert client.recv(200)[0] == 0x20
    return client


def test_a_revoked_certificate_ends_its_connections(
    penstock_server: ServerFactory, tmp_path: Path, settings: dict[str, object], ca: Certificate, crl: Path
) -> None:
    lost, kept = (trusting(ca, client_certificate(tmp_path, name, ca)) for name in ("lost", "kept"))
    server = penstock_server(settings=settings).one_gateway()
    with version_5(server, lost, "a") as client, session(server, kept, "b") as other, session(server, lost, "c") as old:
        list_with_lost = revocation_list(ca, Certificate(tmp_path / "lost.pem", tmp_path / "lost.key"))
        replace(crl, list_with_lost[:200])  # half of it
        wait_for_log(server, "certificates not reloaded, the old ones stay in force: ")
        assert "a CRL in it is not whole" in server.log_text()
        replace(crl, list_with_lost)
        assert disconnected_with(client) is ReasonCode.NOT_AUTHORIZED
        assert disconnected_with(old) is None
        wait_for_log(server, "client a disconnected: its certificate is revoked")
        assert is_refused(server, lost)
        wait_for_log(server, "its certificate is not accepted (certificate revoked)")
        other.sendall(b"\xc0\0")
        assert other.recv(2) == b"\xd0\0"


@ONE
def test_a_list_in_the_file_of_authorities_counts(
    penstock_server: ServerFactory, tmp_path: Path, settings: dict[str, object], ca: Certificate
) -> None:
    lost, kept = (client_certificate(tmp_path, name, ca) for name in ("lost", "kept"))
    both = tmp_path / "both.pem"
    both.write_text(ca.certificate.read_text() + revocation_list(ca, lost))
    server = penstock_server(
        settings=settings | {"gateway.tls_client_ca_file": both, "gateway.tls_client_crl_file": ""}
    )
    assert is_refused(server, trusting(ca, lost))
    assert not is_refused(server, trusting(ca, kept))


@ONE
def test_a_list_that_should_have_been_replaced(
    penstock_server: ServerFactory, tmp_path: Path, settings: dict[str, object], ca: Certificate, crl: Path
) -> None:
    """New clients are refused, also those that go on with a TLS session; who is there stays."""
    crl.write_text(revocation_list(ca, seconds=5))
    context = trusting(ca, client_certificate(tmp_path, "device", ca))
    server = penstock_server(settings=settings)
    with session(server, context) as client:
        wait_for_log(
            server, "the CRL of CN=authority has expired: its clients are refused until there is a newer one in"
        )
        assert is_refused(server, context)
        wait_for_log(server, "its certificate is not accepted (CRL has expired)")
        client.sendall(b"\xc0\0")
        assert client.recv(2) == b"\xd0\0"
        replace(crl, revocation_list(ca))
        wait_for_log(server, "certificates reloaded")
        assert not is_refused(server, context)


@ONE
def test_a_connection_ends_with_its_certificate(
    penstock_server: ServerFactory, tmp_path: Path, settings: dict[str, object], ca: Certificate
) -> None:
    server = penstock_server(settings=settings)
    expires_s = time.time() + 5
    context = trusting(ca, short_lived(tmp_path, "brief", ca, 5))
    with version_5(server, context, "a") as client, session(server, context, "b") as old:
        ticket = old.session
        assert disconnected_with(client) is ReasonCode.MAXIMUM_CONNECT_TIME
        assert disconnected_with(old) is None
    assert time.time() >= expires_s - 1
    until(lambda: time.time() > expires_s + 1)  # a certificate has whole seconds, and a loop's turn some milliseconds
    plain = socket.create_connection(("127.0.0.1", port_of(server)), 20)
    with context.wrap_socket(plain, server_hostname="localhost", session=ticket) as again, suppress(OSError):
        again.sendall(encode(Connect("b", 4), 4))
        assert again.recv(4) == b""
    wait_for_log(server, "TLS handshake failed: its certificate has expired")


@ONE
def test_an_authority_that_is_taken_away(
    penstock_server: ServerFactory, tmp_path: Path, settings: dict[str, object], ca: Certificate
) -> None:
    other = authority(tmp_path, "other-authority")
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text(ca.certificate.read_text() + other.certificate.read_text())
    server = penstock_server(settings=settings | {"gateway.tls_client_crl_file": ""})
    gone = trusting(ca, client_certificate(tmp_path, "gone", other))
    with (
        session(server, gone, "a") as client,
        session(server, trusting(ca, client_certificate(tmp_path, "x", ca))) as on,
    ):
        replace(ca_file, ca.certificate.read_text())
        assert disconnected_with(client) is None
        wait_for_log(server, "client a disconnected: no trusted authority issued its certificate any more")
        assert is_refused(server, gone)
        on.sendall(b"\xc0\0")
        assert on.recv(2) == b"\xd0\0"


@ONE
def test_every_authority_needs_a_revocation_list(
    penstock_server: ServerFactory, tmp_path: Path, settings: dict[str, object], ca: Certificate
) -> None:
    other = authority(tmp_path, "other-authority")
    (tmp_path / "ca.pem").write_text(ca.certificate.read_text() + other.certificate.read_text())
    server = penstock_server(settings=settings)
    assert is_refused(server, trusting(ca, client_certificate(tmp_path, "device", other)))
    wait_for_log(server, "there is no CRL of who issued it, see gateway.tls_client_crl_file")


def test_errors_of_a_revocation_list_are_one_line(
    tmp_path: Path, settings: dict[str, object], ca: Certificate, crl: Path
) -> None:
    crl.write_text("nothing")
    refused(settings, f"{crl}: no CRL in PEM")
    crl.write_text(revocation_list(ca)[:200])
    refused(settings, f"{crl}: a CRL in it is not whole")
    crl.write_text(revocation_list(authority(tmp_path, "else"), name="authority"))
    refused(settings, f"{crl}: the CRL of CN=authority is not signed by it")
    refused(settings | {"gateway.tls_client_crl_file": tmp_path / "none"}, f"{tmp_path}/none: No such file")
    unset = {"gateway.tls_client_ca_file": "", "gateway.tls_client_certificates": "no"}
    refused(settings | unset, "set gateway.tls_client_ca_file")
