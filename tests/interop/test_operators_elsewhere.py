"""`penstock client` and `penstock ban` at a store on another machine: `--store` and `--token-file`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import authority, vouched_for
from tests.support.mqtt_packet_client import write_secret
from tests.support.server_process import ROOT
from tests.support.store_process import StoreProcess

TIMEOUT_S = 60
TOKENS = {"operator": "what-operators-show", "client": "what-clients-show", "gateway": "what-gateways-show"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    settings = {f"wire.{role}_token": token for role, token in TOKENS.items()}
    store = StoreProcess(tmp_path_factory.mktemp("elsewhere"), settings=settings)
    yield store
    store.close()


def operate(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """From a folder that has no data of a server."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    command = [sys.executable, "-m", "penstock", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def at(store: StoreProcess, token_file: Path) -> list[object]:
    return [f"--store={store.url}", f"--token-file={token_file}"]


def test_an_operator_with_the_token(store: StoreProcess, tmp_path: Path) -> None:
    token_file = write_secret(tmp_path / "token", TOKENS["operator"] + "\n")
    listed = operate("client", "list", "--json", *at(store, token_file))
    assert (listed.returncode, json.loads(listed.stdout)) == (0, []), listed.stderr
    banned = operate("ban", "add", "--user", "mallory", "--reason", "guesses", *at(store, token_file))
    assert banned.returncode == 0, banned.stderr
    (ban,) = json.loads(operate("ban", "list", "--json", *at(store, token_file)).stdout)
    assert (ban["value"], ban["reason"]) == ("mallory", "guesses")
    nobody = operate("client", "show", "nobody", *at(store, token_file))
    assert nobody.returncode == 1
    assert "nobody" in nobody.stderr
    assert TOKENS["operator"] not in store.log_text()


@pytest.mark.parametrize("role", ["client", "gateway", "none"])
def test_operator_with_another_token_is_refused(store: StoreProcess, tmp_path: Path, role: str) -> None:
    token_file = write_secret(tmp_path / "token", TOKENS.get(role, "a guess"))
    for command in (("client", "list"), ("ban", "list"), ("client", "disconnect", "d")):
        refused = operate(*command, *at(store, token_file))
        assert refused.returncode == 1
        assert refused.stderr.count("\n") == 1
        assert "operator" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_mistakes_are_one_line_that_says_what_to_do(store: StoreProcess, tmp_path: Path) -> None:
    empty, readable = write_secret(tmp_path / "empty", ""), write_secret(tmp_path / "readable", "x")
    readable.chmod(0o644)
    good = write_secret(tmp_path / "good", TOKENS["operator"])
    for arguments, complaint in (
        (at(store, tmp_path / "nowhere"), "nowhere: No such file"),
        (at(store, empty), "empty"),
        (at(store, readable), "chmod"),
        (at(store, tmp_path), "Is a directory"),
        ([f"--store={store.url}"], "operator"),
        (["--store=tcp://127.0.0.1:1", f"--token-file={good}"], "127.0.0.1:1"),
        (["--store=http://127.0.0.1:1", f"--token-file={good}"], "tcp://HOST:PORT"),
    ):
        refused = operate("client", "list", *arguments)
        assert refused.returncode in (1, 2), arguments
        assert complaint in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr


def test_over_tls_and_with_a_token_from_a_pipe(tmp_path: Path) -> None:
    ca = authority(tmp_path, "authority")
    made = vouched_for(tmp_path, "server", "DNS:localhost", ca)
    settings = {"wire.operator_token": TOKENS["operator"], "wire.tls_certificate": made.certificate}
    store = StoreProcess(tmp_path, "tls://localhost:0", {**settings, "wire.tls_key": made.key})
    try:
        url = store.said("ready ")
        trusts = {"PENSTOCK_GATEWAY__STORE_CA_FILE": str(ca.certificate)}
        token_file = write_secret(tmp_path / "token", TOKENS["operator"])
        listed = operate("client", "list", "--json", f"--store={url}", f"--token-file={token_file}", **trusts)
        assert listed.returncode == 0, listed.stderr
        shell = f'"$0" -m penstock client list --json --store={url} --token-file <(cat {token_file})'
        environment = os.environ | trusts
        piped = subprocess.run(
            ["bash", "-c", shell, sys.executable], cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_S
        )
        assert piped.returncode == 0, piped.stderr
        distrusted = operate("client", "list", f"--store={url}", f"--token-file={token_file}")
        assert distrusted.returncode == 1
        assert "certificate" in distrusted.stderr
    finally:
        store.close()
