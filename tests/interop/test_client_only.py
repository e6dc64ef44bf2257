"""An install on a machine without a C compiler: the client works, and the rest says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.server_process import ROOT
from tests.support.store_process import StoreProcess

PROGRAM = """
import sys
import store.records.record_bytes
from penstock.sync import Client
assert "plain" in store.records.record_bytes.walk.__module__, store.records.record_bytes.walk
with Client(sys.argv[1]) as client:
    receipt = client.publish("line/7/temp", b"21.5", key="m-7", headers={"unit": "C"})
    with client.batch() as batch:
        for number in range(2_000):
            batch.publish("many", b"%d" % number)
    message = client.get(receipt.message_id)
    print(message.topic, message.payload.decode(), message.key, message.headers, message.queue_offset)
    print([message.payload for message in client.read("many")] == [b"%d" % number for number in range(2_000)])
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that sees what was built without a compiler, and the dependencies."""
    environment = {name: value for name, value in os.environ.items() if name != "CC"} | {"PATH": str(tmp_path)}
    folders = ["--build-base", str(tmp_path / "base"), "--build-lib", str(tmp_path / "lib")]
    command = [sys.executable, "setup.py", "-q", "build", *folders]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "so only the client is installed" in built.stderr
    assert not list((tmp_path / "lib").rglob("*.so"))
    return environment | {"PYTHONPATH": f"{tmp_path / 'lib'}:{sysconfig.get_path('purelib')}"}


def test_the_client_works_and_the_store_says_what_is_missing(installed: dict[str, str], tmp_path: Path) -> None:
    python = [sys.executable, "-S"]  # without what makes this checkout importable
    store = StoreProcess(tmp_path)
    try:
        url = store.url.replace("tcp://", "penstock://")
        program = [*python, "-c", PROGRAM, url]
        printed = subprocess.check_output(program, env=installed, cwd=tmp_path, text=True, timeout=60)
        assert printed.split("\n") == ["line/7/temp 21.5 m-7 {'unit': 'C'} 0", "True", ""]
    finally:
        store.close()
    for command in (["serve"], ["store"], ["store", "inspect", str(tmp_path)], ["gateway", "--store", "tcp://h:1"]):
        done = subprocess.run(
            [*python, "-m", "penstock", *command],
            env=installed,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "is not compiled; without a C compiler only the client was installed" in done.stderr
        assert "Traceback" not in done.stderr
