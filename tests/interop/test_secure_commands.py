"""`penstock pub` and `penstock sub` over each transport; and certificates as who a client is, with what it may do."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S, penstock, run
from tests.support.certificates import Certificate, authority, client_certificate, vouched_for
from tests.support.server_process import PenstockServer

RULES = """
[[rule]]
allow = ["publish", "subscribe", "retain"]
topics = ["plant/%u/#"]
"""


@pytest.fixture
def ca(tmp_path: Path) -> Certificate:
    return authority(tmp_path, "authority")


@pytest.fixture
def start(penstock_server: ServerFactory, tmp_path: Path, ca: Certificate) -> "Start":
    return Start(penstock_server, tmp_path, ca)


class Start:
    def __init__(self, factory: ServerFactory, folder: Path, ca: Certificate) -> None:
        self._factory = factory
        self._folder = folder
        self._ca = ca

    def __call__(self, listen: str, **settings: object) -> PenstockServer:
        made = vouched_for(self._folder, "server", "DNS:localhost", self._ca)
        own = {"gateway.listen": listen, "gateway.tls_certificate": made.certificate, "gateway.tls_key": made.key}
        return self._factory(settings=own | {name.replace("__", "."): value for name, value in settings.items()})


def failed(*arguments: str) -> str:
    """What is said in one line."""
    done = subprocess.run(penstock(*arguments), capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode != 0, done.stderr.count(b"\n")) == (True, 1), done
    return done.stderr.decode()


def url_of(server: PenstockServer) -> str:
    return server.urls[0].replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss", "unix"])
def test_each_transport(start: Start, tmp_path: Path, ca: Certificate, scheme: str) -> None:
    server = start(f"unix://{tmp_path}/socket" if scheme == "unix" else f"{scheme}://127.0.0.1:0")
    options = ["--url", url_of(server), *(["--cafile", str(ca.certificate)] if scheme in ("mqtts", "wss") else [])]
    payloads = [b"%d" % number * 100 for number in range(500)]
    run(*penstock("pub", "a/b", "-l", "-q", "1", *options), stdin=b"\n".join(payloads) + b"\n")
    found = run(*penstock("sub", "a/+", "--from", "earliest", "-C", "500", "-q", "1", *options))
    assert found.splitlines() == payloads


def test_a_server_that_is_not_to_be_trusted(start: Start, tmp_path: Path, ca: Certificate) -> None:
    server = start("mqtts://127.0.0.1:0")
    url, ca_file = url_of(server), str(ca.certificate)
    assert "--cafile" in failed("pub", "t", "-n", "--url", url)
    other_name = ["--url", url.replace("localhost", "127.0.0.1"), "--cafile", ca_file]
    assert "IP address mismatch" in failed("pub", "t", "-n", *other_name)
    run(*penstock("pub", "t", "-n", *other_name, "--insecure"))
    assert "no TLS" in failed("pub", "t", "-n", "--url", "mqtt://localhost:1", "--cafile", ca_file)
    missing = str(tmp_path / "missing")
    for option in ("--cafile", "--cert"):
        assert missing in failed("pub", "t", "-n", "--url", url, option, missing)
    assert "--cert" in failed("sub", "t", "--url", url, "--key", missing)


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
@pytest.mark.parametrize("name", ["cn", "san"])
def test_a_certificate_says_who_it_is_and_so_what_it_may_do(
    start: Start, tmp_path: Path, ca: Certificate, scheme: str, name: str
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    server = start(
        f"{scheme}://127.0.0.1:0",
        gateway__tls_client_certificates="required",
        gateway__tls_client_ca_file=ca.certificate,
        gateway__tls_user_name=name,
        auth__client_certificates=True,
        auth__permissions_file=rules,
    )
    own = client_certificate(tmp_path, "pump-7", ca, "DNS:pump-7.plant" if name == "san" else "")
    user = "pump-7.plant" if name == "san" else "pump-7"
    to_server = ["--url", url_of(server), "--cafile", str(ca.certificate)]
    options = [*to_server, "--cert", str(own.certificate), "--key", str(own.key)]
    run(*penstock("pub", f"plant/{user}/temperature", "-m", "21", "-q", "1", "-r", *options))
    assert run(*penstock("sub", f"plant/{user}/#", "-C", "1", *options)) == b"21\n"
    assert "refused" in failed("pub", "plant/other/temperature", "-m", "21", "-q", "1", *options)
    assert "refused" in failed("sub", "plant/#", *options)
    assert "--cert" in failed("pub", f"plant/{user}/temperature", "-n", *to_server)
