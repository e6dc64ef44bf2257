"""Clients that generators make from the console's OpenAPI document consume a group."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_console_api import Site
from tests.interop.test_console_generated import JS, document, generated, run, site
from tests.support.console_process import WebClient, basic
from tests.support.http_group import HttpGroup
from tests.support.store_process import StoreProcess

__all__ = ["document", "generated", "site"]

GO = Path(__file__).parent / "go"
GENERATOR = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
GO_ENOUGH = r"go1\.(2[6-9]|[3-9]\d)"
MAKE_GENERATOR_S = 500
"""The first time it is downloaded and compiled: 110 MB, and 50 s of CPU."""
PAYLOADS = ["one", "bad", "later", "two"]
ACKED = ["later 2", "one 1", "two 1"]
"""Payload and attempt."""


def begun(client: WebClient, name: str) -> HttpGroup:
    """A group in front of the messages."""
    group = HttpGroup(client, name, f"{name}/#")
    assert group.pop() == []
    answer = client.post("/messages", [{"topic": f"{name}/1", "payload": each} for each in PAYLOADS])
    assert answer.status == 201
    return group


def check_settled(group: HttpGroup) -> None:
    found = group.client.get(f"/groups/{group.name}").json
    assert (found["lag"], found["in_flight"], found["dead_letters"]) == (0, 0, 1)


def test_a_python_client_consumes(site: Site, generated: str) -> None:
    group = begun(bob(site), "py")
    acked: list[str] = []
    token = basic("bob", "s3c").removeprefix("Basic ")
    with import_module(generated).AuthenticatedClient(site.console.url, token=token, prefix="Basic") as client:

        def ask(name: str, model: str, **body: Any) -> Any:
            made = getattr(import_module(f"{generated}.models"), model)(filter_=group.topic_filter, **body)
            operation = import_module(f"{generated}.api.groups.{name}").sync_detailed
            answer = operation(group.name, client=client, body=made)
            assert answer.status_code == 200, answer
            return answer.parsed

        while popped := ask("pop_messages", "PopWanted", most=3, wait_s=1.0, invisible_s=60.0).messages:
            for each in popped:
                of_it: dict[str, Any] = {"handles": [each.handle]}
                ask("extend_messages", "HandlesToExtend", **of_it, invisible_s=120.0)
                if each.message.payload == "bad":
                    ask("reject_messages", "HandlesToReject", **of_it, reason="bad")
                elif each.message.payload == "later" and each.attempt == 1:
                    ask("retry_messages", "HandlesToRetry", **of_it, after_s=0.0)
                else:
                    assert ask("ack_messages", "HandlesSettled", **of_it).settled == 1
                    acked.append(f"{each.message.payload} {each.attempt}")
    assert sorted(acked) == ACKED
    check_settled(group)


def bob(site: Site) -> WebClient:
    return site.console.client(Authorization=basic("bob", "s3c"))


@pytest.fixture(scope="module")
def open_site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store that asks nobody for a password."""
    folder = tmp_path_factory.mktemp("open")
    store = StoreProcess(folder)
    site = Site(folder, store)
    yield site
    site.console.close()
    store.close()


@pytest.mark.nightly
def test_a_typescript_client_consumes(open_site: Site, document: Any, tmp_path: Path) -> None:
    """The compiler checks what the program sends and takes against the document."""
    assert (JS / "node_modules" / "openapi-typescript").exists(), "run `npm ci` in tests/interop/js"
    node = shutil.which("node")
    assert node, "Node.js is missing"
    group = begun(open_site.client, "ts")
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "node_modules").symlink_to(JS / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(JS / "consume.ts", tmp_path)
    programs = tmp_path / "node_modules" / ".bin"
    run([programs / "openapi-typescript", "openapi.json", "--output", "schema.d.ts"], tmp_path)
    options = ["--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"]
    run([programs / "tsc", *options, "--skipLibCheck", "consume.ts"], tmp_path)
    said = json.loads(run([node, "consume.js", open_site.console.url, group.name, group.topic_filter], tmp_path))
    assert (sorted(said["acked"]), said["wrong"]) == (ACKED, "urn:penstock:problem:bad-handle")
    check_settled(group)


@pytest.mark.nightly
def test_a_go_client_consumes(open_site: Site, document: Any, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None or not re.match(GO_ENOUGH, run([go, "env", "GOVERSION"], tmp_path)):
        pytest.skip("Go 1.26 or later is missing; Debian's package, which .ci/packages could install, is older")
    group = begun(open_site.client, "go")
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "api").mkdir()
    for name in ("go.mod", "go.sum", "consume.go"):
        shutil.copy(GO / name, tmp_path)
    options = ["-generate", "types,client", "-package", "api", "-include-tags", "groups", "-o", "api/api.gen.go"]
    run([go, "run", GENERATOR, *options, "openapi.json"], tmp_path, MAKE_GENERATOR_S)
    run([go, "build", "-buildvcs=false", "-o", "consume", "."], tmp_path)
    said = json.loads(run([tmp_path / "consume", open_site.console.url, group.name, group.topic_filter], tmp_path))
    assert (sorted(said["acked"]), said["wrong"]) == (ACKED, "urn:penstock:problem:bad-handle")
    check_settled(group)
