"""Where a table of these tests lies: in a folder, or in a bucket of an S3 server with conditional writes (moto)."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from loadtest.chaos.part import Part
from tests.support.server_process import ROOT, PenstockServer
from tests.support.store_process import StoreProcess
from tests.tier.places import BUCKET, TablePlace, s3_options
from tests.tier.tier_process import SMALL


@pytest.fixture(autouse=True)
def no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that fails before it ends what it started leaves no process."""
    started: list[Part | PenstockServer] = []
    start, serve = Part.start, PenstockServer._start

    def part(process: Part) -> None:
        started.append(process)
        start(process)

    def server(process: PenstockServer) -> None:
        started.append(process)
        serve(process)

    monkeypatch.setattr(Part, "start", part)
    monkeypatch.setattr(PenstockServer, "_start", server)
    yield
    for each in started:
        if each.process.poll() is None:
            each.kill()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.tier.s3_server"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        endpoint = server.stdout.readline().strip()
        make_bucket(s3_options(endpoint))
        yield endpoint
    finally:
        server.stdin.close()
        server.wait(10)
        server.stdout.close()


def make_bucket(options: dict[str, str]) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint"],
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
        region_name=options["aws_region"],
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that storage itself may fail, or answer in its own way, run with both by day."""
    is_said = any(mark.args[0] == "place" for mark in metafunc.definition.iter_markers("parametrize"))
    if "place" in metafunc.fixturenames and not is_said:
        is_by_day = metafunc.definition.get_closest_marker("s3_by_day") is not None
        s3 = pytest.param("s3", marks=[] if is_by_day else pytest.mark.nightly)
        metafunc.parametrize("place", ["folder", s3], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> TablePlace:
    """A place where nothing is yet."""
    if request.param == "folder":
        return TablePlace(str(tmp_path / "fleet"), {})
    endpoint = request.getfixturevalue("s3_endpoint")
    return TablePlace(f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}", s3_options(endpoint))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    """A store whose retention drops what is older than a moment."""
    store = StoreProcess(tmp_path, settings=SMALL)
    yield store
    store.close()
