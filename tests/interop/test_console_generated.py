"""Clients that generators make from the console's OpenAPI document, against a real console."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_console_api import Site
from tests.interop.test_console_process import passwords
from tests.support.console_process import basic
from tests.support.store_process import StoreProcess

JS = Path(__file__).parent / "js"
GENERATE_S = 120
PACKAGE = "penstock_generated_client"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("generated")
    store = StoreProcess(folder, settings={"auth.password_file": passwords(folder, bob="s3c")})
    site = Site(folder, store)
    yield site
    site.console.close()
    store.close()


@pytest.fixture(scope="module")
def document(site: Site) -> Any:
    return site.client.ask("GET", "/api/openapi.json").json


def run(command: list[str | Path], folder: Path, timeout_s: float = GENERATE_S) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def generated(document: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Python package that openapi-python-client makes; with complaints, it makes none."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "openapi.json").write_text(json.dumps(document))
    (folder / "config.yaml").write_text("post_hooks: []\n")
    program = Path(sys.executable).parent / "openapi-python-client"
    arguments = ["--path", "openapi.json", "--config", "config.yaml", "--output-path", PACKAGE, "--meta", "none"]
    said = run([program, "generate", *arguments, "--fail-on-warning"], folder)
    assert "Warning" not in said, said
    sys.path.insert(0, str(folder))
    yield PACKAGE
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.mark.catalogue("I34")
def test_a_python_client_publishes_and_reads(site: Site, generated: str) -> None:
    token = basic("bob", "s3c").removeprefix("Basic ")
    with import_module(generated).AuthenticatedClient(site.console.url, token=token, prefix="Basic") as client:
        publish_and_read(client, generated)


def publish_and_read(client: Any, generated: str) -> None:
    def operation(name: str) -> Any:
        return import_module(f"{generated}.api.{name}").sync_detailed

    models = import_module(f"{generated}.models")
    message = models.MessageToPublish.from_dict({"topic": "py/1", "payload": "first", "headers": {"unit": "C"}})
    one = operation("messages.publish_messages")(client=client, body=message, idempotency_key="once")
    again = operation("messages.publish_messages")(client=client, body=message, idempotency_key="once")
    assert (one.status_code, one.parsed) == (201, again.parsed)
    found = operation("messages.get_message")(one.parsed.message_id, client=client).parsed
    assert (found.payload, found.headers["unit"]) == ("first", "C")
    wrong = models.MessageToPublish.from_dict({"topic": "py/1", "payload_base64": "?"})
    some = operation("messages.publish_messages")(client=client, body=[message, wrong])
    assert some.status_code == 207
    receipt, problem = some.parsed.receipts
    assert (receipt.queue_offset, problem.status) == (1, 422)
    page = operation("messages.read_messages")(client=client, filter_="py/1", limit=1).parsed
    rest = operation("messages.read_messages")(client=client, filter_="py/1", limit=1, cursor=page.next_).parsed
    assert (page.messages[0].queue_offset, rest.messages[0].queue_offset, rest.next_) == (0, 1, None)
    assert operation("topics.get_topic")("py/1", client=client).parsed.messages == 2
    refused = operation("messages.read_messages")(client=client, filter_="py/1", limit=0).parsed
    assert refused.type_ == "urn:penstock:problem:bad-parameter"


def test_a_typescript_client_publishes_and_reads(site: Site, document: Any, tmp_path: Path) -> None:
    """The compiler checks what the program sends and takes against the document."""
    assert (JS / "node_modules" / "openapi-typescript").exists(), "run `npm ci` in tests/interop/js"
    node = shutil.which("node")
    assert node, "Node.js is missing"
    open_store = StoreProcess(tmp_path)
    open_site = Site(tmp_path, open_store)
    try:
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        (tmp_path / "node_modules").symlink_to(JS / "node_modules")
        (tmp_path / "package.json").write_text('{"type": "module"}')
        shutil.copy(JS / "api.ts", tmp_path)
        programs = tmp_path / "node_modules" / ".bin"
        run([programs / "openapi-typescript", "openapi.json", "--output", "schema.d.ts"], tmp_path)
        options = ["--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"]
        run([programs / "tsc", *options, "--skipLibCheck", "api.ts"], tmp_path)
        said = json.loads(run([node, "api.js", open_site.console.url], tmp_path))
    finally:
        open_site.console.close()
        open_store.close()
    assert said == {
        "several": 207,
        "found": {"unit": "C"},
        "page": ['{"n":2}', "first"],
        "wrong": "urn:penstock:problem:bad-parameter",
    }


def test_links_name_operations_and_their_parameters(document: Any) -> None:
    found = {each["operationId"]: each for methods in document["paths"].values() for each in methods.values()}
    linked = 0
    for operation in found.values():
        for answer in operation["responses"].values():
            for link in answer.get("links", {}).values():
                names = {each["name"] for each in found[link["operationId"]]["parameters"]}
                assert set(link["parameters"]) <= names, link
                linked += 1
    assert linked > 20


def test_each_operation_has_a_plain_name_of_its_own_and_says_who_may_ask(document: Any) -> None:
    found = [operation for methods in document["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in found]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and "api_v1" not in name for name in names)
    schemes = set(document["components"]["securitySchemes"])
    assert {name for operation in found for each in operation["security"] for name in each} == schemes
    bodies = json.dumps([operation["requestBody"] for operation in found if "requestBody" in operation])
    for name in re.findall(r'"#/components/schemas/(\w+)"', bodies):
        members = document["components"]["schemas"][name]["properties"].values()
        assert not any("default" in member for member in members)  # TypeScript's generators would want them
    publish = document["paths"]["/api/v1/messages"]["post"]
    assert set(publish["responses"]) == {"201", "207", "default"}
    assert "examples" in publish["requestBody"]["content"]["application/json"]
