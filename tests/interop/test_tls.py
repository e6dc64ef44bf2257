"""TLS of client connections: what is negotiated, whose certificates count, and how they are renewed."""

import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect
from tests.conftest import ONE_PROCESS_BY_DAY, ServerFactory, SharedServers
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_listeners import wait_for_log
from tests.support.certificates import Certificate, authority, client_certificate, vouched_for
from tests.support.server_process import ROOT, PenstockServer, ServeOptions

pytestmark = ONE_PROCESS_BY_DAY


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, ca: Certificate) -> dict[str, object]:
    """Settings of a listener, with a certificate."""
    return listener_settings(tmp_path_factory.mktemp("server"), ca)


@pytest.fixture
def own_files(tmp_path: Path, ca: Certificate) -> dict[str, object]:
    """The same, which a test may change."""
    return listener_settings(tmp_path, ca)


def listener_settings(folder: Path, ca: Certificate) -> dict[str, object]:
    made = vouched_for(folder, "server", "DNS:localhost", ca)
    return {
        "gateway.listen": "mqtts://127.0.0.1:0",
        "gateway.tls_certificate": made.certificate,
        "gateway.tls_key": made.key,
    }


def port_of(server: PenstockServer) -> int:
    return int(server.urls[0].rpartition(":")[2])


def trusting(ca: Certificate, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca.certificate)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


@contextmanager
def session(server: PenstockServer, context: ssl.SSLContext, name: str = "device") -> Iterator[ssl.SSLSocket]:
    """Connected, with MQTT's CONNECT sent and answered. Raises OSError if it does not come to that."""
    plain = socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S)
    with context.wrap_socket(plain, server_hostname="localhost") as client:
        client.sendall(encode(Connect(name, 4), 4))
        if client.recv(4) != b"\x20\2\0\0":
            raise ConnectionResetError
        yield client


def serial(client: ssl.SSLSocket) -> str:
    found = client.getpeercert()
    assert found
    return str(found["serialNumber"])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.catalogue("G26")
def test_versions(
    shared_server: SharedServers, files: dict[str, object], ca: Certificate, version: ssl.TLSVersion
) -> None:
    context = trusting(ca)
    context.minimum_version = context.maximum_version = version
    with session(shared_server(settings=files), context) as client:
        assert client.version() == version.name.replace("_", ".")
        for size in (1, 16_000, 700_000):  # more than a record, more than the buffer that is read into
            client.sendall(b"\x82\x06\0\1\0\1t\0" if size == 1 else b"")
            if size == 1:
                assert client.recv(5) == b"\x90\3\0\1\0"
            packet = publish(bytes(size))
            client.sendall(packet)
            assert read(client, len(packet)) == packet
        client.unwrap()  # its goodbye is answered
    with session(shared_server(settings=files), context) as client:
        client.shutdown(socket.SHUT_WR)


def publish(payload: bytes) -> bytes:
    size, head = 3 + len(payload), b""
    while size > 127:
        head, size = head + bytes((size & 127 | 128,)), size >> 7
    return b"\x30" + head + bytes((size,)) + b"\0\1t" + payload


def read(client: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        assert more
        data += more
    return data


def test_old_or_missing_tls_is_refused(shared_server: SharedServers, files: dict[str, object], ca: Certificate) -> None:
    server = shared_server(settings=files)
    old = ["openssl", "s_client", "-connect", f"127.0.0.1:{port_of(server)}", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]
    assert subprocess.run(old, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode
    with socket.create_connection(("127.0.0.1", port_of(server))) as stranger:
        stranger.sendall(encode(Connect("device", 4), 4))
        with suppress(ConnectionResetError):
            assert b"\x20\2" not in stranger.recv(100)
    wait_for_log(server, "TLS handshake failed: it speaks no TLS")
    with pytest.raises(ssl.SSLCertVerificationError), session(server, ssl.create_default_context()):
        pass
    wait_for_log(server, "TLS handshake failed: it does not accept the certificate")
    with session(server, trusting(ca)):
        pass


def hello_head(size: int, of_record: int = 512) -> bytes:
    """A TLS record that begins with the head of a ClientHello."""
    return b"\x16\x03\1" + of_record.to_bytes(2, "big") + b"\1" + size.to_bytes(3, "big")


def client_hello(ca: Certificate) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = trusting(ca).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "start",
    [
        hello_head(128 << 10),
        hello_head((16 << 10) + 1),
        hello_head((1 << 24) - 1, 9),
        b"\x16\x03\1\0\1\1" + b"\x16\x03\1\0\3\0\2\0",  # in records of a byte and of three
        b"\x16\x03\1\0\0" * 2,
    ],
    ids=["128 KiB", "above 16 KiB", "16 MiB", "cut up", "empty records"],
)
def test_a_client_hello_that_is_too_large_or_cut_up_is_refused_at_its_head(
    shared_server: SharedServers, files: dict[str, object], ca: Certificate, start: bytes
) -> None:
    """OpenSSL would make room for all that it announces."""
    server = shared_server(settings=files)
    for cut in (len(start), 1):
        with socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(ConnectionError):
                for at in range(0, len(start), cut):
                    client.sendall(start[at : at + cut])
                assert client.recv(100) == b""
    wait_for_log(server, "TLS handshake failed: its ClientHello is too large, or cut up")
    with session(server, trusting(ca)):
        pass


def test_a_client_hello_may_come_in_pieces(
    shared_server: SharedServers, files: dict[str, object], ca: Certificate
) -> None:
    hello = client_hello(ca)
    for cut in (1, 100):
        with socket.create_connection(("127.0.0.1", port_of(shared_server(settings=files))), TIMEOUT_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(hello), cut):
                client.sendall(hello[at : at + cut])
            assert client.recv(1) == b"\x16"  # a ServerHello


def test_handshakes_under_way_count_with_all_that_is_not_whole(
    penstock_server: ServerFactory, files: dict[str, object], ca: Certificate
) -> None:
    server = penstock_server(settings={**files, "gateway.connecting_bytes": 1 << 20}).one_gateway()

    def opened(start: bytes) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S)
        made.sendall(start)
        return made

    silent = [opened(b"") for _ in range(30)]  # these keep nothing
    begun = [opened(client_hello(ca)) for _ in range(30)]
    while begun[0].recv(65_536):  # those that have been so for the longest are closed
        pass
    wait_for_log(server, "its packet is not whole and gateway.connecting_bytes is used up")
    assert begun[-1].recv(1) == b"\x16"
    with session(server, trusting(ca)):
        pass
    silent[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        silent[0].recv(1)
    for each in silent + begun:
        each.close()


@pytest.mark.topologies("one process", "shared port", "two gateways")
@pytest.mark.parametrize("how", ["signal", "files"])
def test_a_new_certificate_without_a_restart(
    penstock_server: ServerFactory, tmp_path: Path, own_files: dict[str, object], ca: Certificate, how: str
) -> None:
    server = penstock_server(settings=own_files)
    newer = vouched_for(tmp_path, "newer", "DNS:localhost", ca)
    with session(server, trusting(ca), "old") as client:
        old = serial(client)
        shutil.copy(newer.certificate, str(own_files["gateway.tls_certificate"]))
        if how == "files":  # only half of it is there by now
            wait_for_log(server, "certificates not reloaded, the old ones stay in force")
            with session(server, trusting(ca)) as other:
                assert serial(other) == old
        shutil.copy(newer.key, str(own_files["gateway.tls_key"]))
        if how == "signal":
            server.signal(signal.SIGHUP)
        deadline_s = time.monotonic() + TIMEOUT_S
        fresh = 0
        while fresh < 10:  # in a row: all processes have it
            with session(server, trusting(ca)) as other:
                fresh = fresh + 1 if serial(other) != old else 0
            assert time.monotonic() < deadline_s, server.log_text()
        client.sendall(b"\xc0\0")
        assert client.recv(2) == b"\xd0\0"


@pytest.mark.parametrize("asks", ["optional", "required"])
@pytest.mark.catalogue("G26")
def test_certificates_of_clients(
    shared_server: SharedServers, tmp_path: Path, files: dict[str, object], ca: Certificate, asks: str
) -> None:
    settings = files | {"gateway.tls_client_certificates": asks, "gateway.tls_client_ca_file": ca.certificate}
    server = shared_server(settings=settings)
    with session(server, trusting(ca, client_certificate(tmp_path, "pump-7", ca)), "known"):
        wait_for_log(server, "client known connected from 127.0.0.1")
        wait_for_log(server, "with the certificate of pump-7")
    stranger = client_certificate(tmp_path, "stranger", authority(tmp_path, "other-authority"))
    with pytest.raises(OSError), session(server, trusting(ca, stranger)):  # noqa: PT011
        pass
    wait_for_log(server, "TLS handshake failed: its certificate is not accepted")
    if asks == "optional":
        with session(server, trusting(ca)):
            pass
    else:
        with pytest.raises(OSError), session(server, trusting(ca)):  # noqa: PT011
            pass
        wait_for_log(server, "it shows no certificate, and gateway.tls_client_certificates is required")


def test_the_user_may_be_an_alternative_name(
    shared_server: SharedServers, tmp_path: Path, files: dict[str, object], ca: Certificate
) -> None:
    settings = {"gateway.tls_client_certificates": "required", "gateway.tls_user_name": "san"}
    server = shared_server(settings=files | settings | {"gateway.tls_client_ca_file": ca.certificate})
    own = client_certificate(tmp_path, "pump-7", ca, "URI:spiffe://plant/pump-7")
    with session(server, trusting(ca, own)):
        wait_for_log(server, "with the certificate of spiffe://plant/pump-7")


def test_resumed_sessions_keep_their_identity(
    shared_server: SharedServers, tmp_path: Path, files: dict[str, object], ca: Certificate
) -> None:
    settings = files | {"gateway.tls_client_certificates": "required", "gateway.tls_client_ca_file": ca.certificate}
    server = shared_server(settings=settings).one_gateway()  # which knows its own tickets
    seen = server.log_text().count("with the certificate of pump-7")
    context = trusting(ca, client_certificate(tmp_path, "pump-7", ca))
    with session(server, context, "first") as client:
        ticket = client.session
    plain = socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S)
    with context.wrap_socket(plain, server_hostname="localhost", session=ticket) as client:
        client.sendall(encode(Connect("second", 4), 4))
        assert client.recv(4) == b"\x20\2\0\0"
        assert client.session_reused
    wait_for_log(server, "client second connected from")
    assert server.log_text().count("with the certificate of pump-7") == seen + 2


def refused(settings: dict[str, object], *texts: str) -> None:
    """One line that says all of this."""
    command = [sys.executable, "-m", "penstock", "serve", "--data", "/nonexistent/data"]
    environment = ServeOptions(settings=settings).environment()
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode
    assert done.stderr.count("\n") == 1, done.stderr
    for text in texts:
        assert text in done.stderr


def test_errors_of_tls_settings_are_one_line(tmp_path: Path, files: dict[str, object], ca: Certificate) -> None:
    certificate, key = files["gateway.tls_certificate"], files["gateway.tls_key"]
    refused(files | {"gateway.tls_certificate": ""}, "gateway.tls_certificate and gateway.tls_key go together")
    refused(files | {"gateway.tls_key": tmp_path / "none"}, str(tmp_path / "none"), "gateway.tls_key")
    refused(files | {"gateway.tls_key": ca.key}, str(certificate), "not a certificate with its key")
    refused(files | {"gateway.tls_client_certificates": "required"}, "gateway.tls_client_ca_file")
    refused(files | {"gateway.tls_client_ca_file": certificate}, "gateway.tls_client_certificates")
    asks = files | {"gateway.tls_client_certificates": "required", "gateway.tls_client_ca_file": key}
    refused(asks, str(key), "no certificates in PEM")
    crl = {"gateway.tls_client_crl_file": ca.certificate}  # which the ssl module would take for an empty list
    refused(files | crl, "gateway.tls_client_ca_file")
    refused(asks | {"gateway.tls_client_ca_file": ca.certificate} | crl, str(ca.certificate), "no CRL in PEM")


def test_tls_needs_a_certificate(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "serve",
        "--data",
        str(tmp_path / "d"),
        "--listen",
        "wss://127.0.0.1:0",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "TLS needs gateway.tls_certificate and gateway.tls_key; set both" in done.stderr


def test_required_certificates_are_authentication(shared_server: SharedServers, files: dict[str, object]) -> None:
    files = files | {"gateway.listen": "mqtts://0.0.0.0:0"}
    refused(files, "mqtts://0.0.0.0:0", "auth.allow_anonymous = true")
    ca_file = files["gateway.tls_certificate"]
    shared_server(
        settings=files | {"gateway.tls_client_certificates": "required", "gateway.tls_client_ca_file": ca_file}
    )
