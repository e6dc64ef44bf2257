"""A gateway and its store, each a process: TLS and tokens, and the one clear line about whatever is wrong."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.chaos.part import Part
from store.wire.frames import encode
from store.wire.messages import Refused, RefusedReason
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.interop.test_admin import get
from tests.interop.test_admin_apart import WithAdmin
from tests.support.certificates import authority, vouched_for
from tests.support.mqtt_packet_client import write_secret
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

STRANGERS = 60


class Site:
    """A folder with an authority, a store, and gateways; all end with close()."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = authority(folder, "authority")
        self._parts: list[Part] = []

    def store(self, scheme: str = "tls", subject: str = "IP:127.0.0.1", **wire: object) -> StoreProcess:
        made = vouched_for(self.folder, "store", subject, self.authority)
        settings: dict[str, object] = {"wire.tls_certificate": made.certificate, "wire.tls_key": made.key}
        settings |= {f"wire.{name}": value for name, value in wire.items()}
        store = StoreProcess(self.folder, f"{scheme}://127.0.0.1:{free_port()}", settings)
        self._parts.append(store)
        return store

    def gateway(self, url: str, **settings: object) -> WithAdmin:
        own = {f"gateway.{name}": value for name, value in settings.items()}
        command = ["gateway", "--store", url, "--listen", "mqtt://127.0.0.1:0", "--admin", "127.0.0.1:0"]
        gateway = WithAdmin(self.folder / f"gateway-{len(self._parts)}.log", command, own)
        self._parts.append(gateway)
        return gateway

    def close(self) -> None:
        for part in self._parts:
            part.kill()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def complaint(gateway: WithAdmin, times: Callable[[], int]) -> str:
    """What it says of its store, once, however often it has tried by now; the same is on the page."""
    wait_until(lambda: times() >= 3, TIMEOUT_S)
    (line,) = re.findall(r"store \w+://\S+: (.*); trying again\n", gateway.log_text())
    status, _, text = get(gateway.url() + "/readyz")
    assert (status, text) == (503, f"the store cannot be reached: {line}\n")
    assert get(gateway.url() + "/healthz")[0] == 200
    assert "Traceback" not in gateway.log_text()
    return str(line)


def counted(store: StoreProcess, text: str) -> Callable[[], int]:
    return lambda: store.log_text().count(text)


# --- what works


def test_a_private_authority_and_a_token_out_of_a_file(site: Site) -> None:
    token = site.folder / "token"
    write_secret(token, "s3cret\n")
    store = site.store(gateway_token_file=token)
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate, store_token_file=token)
    wait_until(lambda: "ready mqtt://" in gateway.log_text(), TIMEOUT_S)
    (port,) = re.findall(r"ready mqtt://127\.0\.0\.1:(\d+) ", gateway.log_text())
    client = PahoClient(int(port)).connect().subscribe("t", 2)
    payloads = [b"%d" % i + bytes(100_000) for i in range(50)]
    client.publish("t", payloads, 2)
    assert [payload for _, payload in client.messages(50)] == payloads
    assert get(gateway.url() + "/readyz")[0] == 200
    for part in (gateway, store):
        part.terminate()
        assert not re.search("WARNING|ERROR|Traceback|s3cret", part.log_text())


def test_a_store_that_goes_and_comes_back(site: Site) -> None:
    store = site.store()
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate)
    wait_until(lambda: get(gateway.url() + "/readyz")[0] == 200, TIMEOUT_S)
    store.terminate()
    wait_until(lambda: "cannot connect (" in gateway.log_text(), TIMEOUT_S)
    assert re.findall(r"store \S+: (.*); trying again\n", gateway.log_text()) == [
        "it said goodbye: the store stops",
        "cannot connect (Connection refused); is it running, and is the address right?",
    ]
    assert "cannot be reached: cannot connect (Connection refused)" in get(gateway.url() + "/readyz")[2]
    store.start()
    wait_until(lambda: get(gateway.url() + "/readyz")[0] == 200, TIMEOUT_S)


def test_serve_uses_no_token_between_its_own_processes(site: Site) -> None:
    command = ["serve", "--gateways", "1", "--data", str(site.folder / "served"), "--listen", "mqtt://127.0.0.1:0"]
    server = Part(site.folder / "serve.log", command, {"wire.token": "x", "gateway.store_ca_file": "/nonexistent"})
    server.terminate()


# --- what does not


def test_an_authority_that_is_not_trusted(site: Site) -> None:
    store = site.store()
    gateway = site.gateway(store.url)
    assert complaint(gateway, counted(store, "perhaps it does not accept the certificate")) == (
        "the store's certificate is not accepted (unable to get local issuer certificate); "
        "name the file with who vouches for it in gateway.store_ca_file"
    )


def test_a_certificate_for_another_name(site: Site) -> None:
    store = site.store(subject="DNS:other.example")
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate)
    line = complaint(gateway, counted(store, "perhaps it does not accept the certificate"))
    assert re.fullmatch(
        r"the store's certificate is not accepted \(IP address mismatch.*\); use a name that it is for in "
        r"gateway\.store, or give the store another \(wire\.tls_certificate\)",
        line,
    )


def test_tls_on_one_side_only(site: Site) -> None:
    store = site.store("tcp")
    gateway = site.gateway(store.url.replace("tcp:", "tls:"), store_ca_file=site.authority.certificate)
    assert re.fullmatch(
        r"it speaks no TLS \(\w+\); use tcp:// in gateway.store, or tls:// in the store's wire.listen",
        complaint(gateway, counted(store, "its connection is closed")),
    )


def test_tls_on_the_other_side_only(site: Site) -> None:
    store = site.store()
    gateway = site.gateway(store.url.replace("tls:", "tcp:"))
    line = complaint(gateway, counted(store, "TLS handshake failed: it speaks no TLS"))
    assert line == "it closed the connection without a word; if it wants TLS, use tls:// in gateway.store"


@pytest.mark.parametrize("token", ["", "S3cret"])
def test_a_wrong_token(site: Site, token: str) -> None:
    store = site.store("tcp", token="s3cret")
    gateway = site.gateway(store.url, store_token=token)
    assert complaint(gateway, counted(store, "not let in (token)")) == (
        "not let in: the store refused the connection (token): not the token of a gateway; "
        "set gateway.store_token or gateway.store_token_file to what wire.gateway_token or wire.token is there"
    )


def test_a_store_of_another_version(site: Site) -> None:
    """As one of the future would answer."""
    greeted: list[bytes] = []
    answer = encode(Refused(RefusedReason.VERSION, "the store speaks version 9 of the protocol, not 1"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_all() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    greeted.append(connection.recv(65_536))
                    connection.sendall(answer)
                    connection.recv(65_536)

        thread = threading.Thread(target=answer_all)
        thread.start()
        try:
            gateway = site.gateway(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
            line = complaint(gateway, lambda: len(greeted))
        finally:
            gateway.kill()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert "the store speaks version 9 of the protocol, not 1; let the store and its gateways be of the same" in line


def test_peer_that_does_not_trust_the_store_is_logged(site: Site) -> None:
    store = site.store()
    address = ("127.0.0.1", int(store.url.rpartition(":")[2]))
    with socket.create_connection(address) as plain, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")
    wait_until(lambda: "it does not accept the certificate (TLSV1_ALERT_UNKNOWN_CA)" in store.log_text(), TIMEOUT_S)


def test_peers_without_tls_are_counted_and_do_not_fill_the_log(site: Site) -> None:
    store = site.store(handshake_timeout_s=1)
    port = int(store.url.rpartition(":")[2])
    for i in range(STRANGERS):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" if i % 2 else b"\x10\x0d\0\4MQTT\4\2\0\0\0\1s")
            stranger.settimeout(TIMEOUT_S)
            while True:
                try:
                    if not stranger.recv(65_536):
                        break
                except ConnectionResetError:
                    break
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.settimeout(TIMEOUT_S)
        assert silent.recv(1) == b""
    gateway = site.gateway(store.url, store_ca_file=site.authority.certificate)
    wait_until(lambda: get(gateway.url() + "/readyz")[0] == 200, TIMEOUT_S)
    store.terminate()
    text = store.log_text()
    lines = re.findall(r"peer 127\.0\.0\.1:\d+: TLS handshake failed", text)
    left_out = map(int, re.findall(r"(\d+) more lines of the kind bad_input were left out", text))
    assert len(lines) + sum(left_out) == STRANGERS + 1
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("url", "settings", "says"),
    [
        ("tcp://127.0.0.1:7", {"store_token": "x", "store_token_file": "/dev/null"}, "are both set; unset one"),
        ("tcp://127.0.0.1:7", {"store_token_file": "/dev/null"}, "empty, so the store would refuse the gateway"),
        ("tcp://127.0.0.1:7", {"store_token_file": "/nonexistent"}, "readable file with gateway.store_token_file"),
        ("tls://127.0.0.1:7", {"store_ca_file": "/nonexistent"}, "name a readable file with gateway.store_ca_file"),
        ("tls://127.0.0.1:7", {"store_ca_file": "/dev/null"}, "/dev/null: not a regular file"),
        (
            "tcp://127.0.0.1:7",
            {"store_ca_file": "/dev/null"},
            "is for tls:// addresses, and tcp://127.0.0.1:7 is not one",
        ),
    ],
)
def test_gateway_does_not_start_with_invalid_store_settings(
    site: Site, url: str, settings: dict[str, str], says: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        site.gateway(url, **settings)
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("penstock: ")]
    assert says in line
