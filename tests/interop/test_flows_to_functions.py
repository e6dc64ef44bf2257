"""Flows that lead to Python functions: what these get and give, and what becomes of a message that they fail with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.interop.programs import penstock
from tests.rooms import ROOT
from tests.support.flows_fixtures import client as client
from tests.support.flows_fixtures import store as store
from tests.support.flows_part import FlowsPart, letters
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until as until

PATIENCE_S = 60
EXAMPLE = ROOT / "examples/flows"
FUNCTIONS = "python:tests.interop.functions_of_flows"


def wait_until(condition: object) -> None:
    until(condition, PATIENCE_S)  # type: ignore[arg-type]


def flow(function: str, more: str = "") -> str:
    return (
        f'[flow.work]\nfrom = "plant/#"\nto = "{FUNCTIONS}:{function}"\nstart = "earliest"\n'
        f"timeout_s = 1\nattempts = 2\nretry_after_s = 0.01\n{more}\n"
    )


@pytest.mark.parametrize("function", ["plain", "later"])
def test_each_message_has_its_end_whatever_the_function_does_with_others(
    store: StoreProcess, client: Client, tmp_path: Path, function: str
) -> None:
    bad = ("raise", "reject", "die", "leave", "number", "topic", "back", "hang")
    good = [f"good-{i}" for i in range(200)]
    client.publish("plant/first", "first", headers={"a": "b"}, key="7", content_type="text/x")
    for at, text in enumerate(bad):
        client.publish_many([(f"plant/{name}", name) for name in good[at * 25 : (at + 1) * 25]])
        client.publish(f"plant/{text}", text)
    client.publish("plant/many", "many")
    part = FlowsPart(store, tmp_path, flow(function))
    try:
        wait_until(lambda: len(letters(client)) == len(bad))
        wait_until(lambda: len(list(client.read("out/#"))) == len(good) + 4)
    finally:
        part.terminate()
    reasons = {topic.removeprefix("$dead/flow.work/plant/"): reason for topic, reason in letters(client)}
    for text, reason in {
        "raise": "ValueError: not this one, 2 times",
        "reject": "of no use",
        "die": "the process of the function ended by signal 9, 2 times",
        "leave": "the process of the function ended with exit code 3, 2 times",
        "number": "it returned int; return None, (topic, payload), a FunctionOutput",
        "topic": "'bad/#'",
        "back": "'plant/back' would come back to this flow",
        "hang": "the function has not returned after 1 s; its process was killed, 2 times",
    }.items():
        assert reason in reasons[text]
    found = {message.topic: message for message in client.read("out/#")}
    assert len(found) == len(good) + 4  # each once
    first = found["out/first"]
    assert (first.payload, first.key, first.content_type) == (b"b 7 text/x True", "k", "text/plain")
    assert {found[f"out/many/{i}"].headers["n"] for i in range(3)} == {"0", "1", "2"}
    said = part.log_text()
    assert "202 sent, 8 failed, 8 dead letters" in said  # no message is to blame for another one
    assert "printed plant/first\nand this\n" in said
    assert said.count("Traceback") == said.count("\nValueError: not this one\n")  # the function's own


@pytest.mark.parametrize(
    ("to", "told"),
    [
        (
            "python:tests.interop.no_such:f",
            "cannot be imported: ModuleNotFoundError: No module named 'tests.interop.no_",
        ),
        (f"{FUNCTIONS}:nothing", "flow.work.to: tests.interop.functions_of_flows has no nothing; correct the name"),
        (f"{FUNCTIONS}:NO_FUNCTION", ":NO_FUNCTION is int, and no function; name a function"),
        (f"{FUNCTIONS}:no_argument", "cannot be called with a message: too many positional arguments; let it have one"),
        ("python:nothing", "flow.work.to: 'python:nothing' names no function; say python:PACKAGE.MODULE:FUNCTION"),
        (f'{FUNCTIONS}:plain"\nformat = "raw', "flow.work.format: it means nothing to a function; leave it out"),
    ],
)
@pytest.mark.parametrize("command", ["test", "run"])
def test_errors_of_flows_to_functions_are_told_before_the_start(
    store: StoreProcess, tmp_path: Path, to: str, told: str, command: str
) -> None:
    (tmp_path / "flows.toml").write_text(f'[flow.work]\nfrom = "plant/#"\nto = "{to}"\n')
    line = penstock("flow", command, str(tmp_path / "flows.toml"), "--store", store.url)
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_example_publishes_alarms(store: StoreProcess, client: Client, tmp_path: Path) -> None:
    text = (EXAMPLE / "hot.toml").read_text() + 'start = "earliest"\n'
    part = FlowsPart(store, tmp_path, text, {"PYTHONPATH": str(EXAMPLE)})
    try:
        client.publish_many(
            [("plant/7/temp", b'{"celsius": 95}'), ("plant/8/temp", b"90"), ("plant/9/temp", b'{"celsius": 1}')]
        )
        wait_until(lambda: len(list(client.read("alarms/#"))) == 1 and letters(client))
    finally:
        part.kill()
    (message,) = client.read("alarms/#")
    assert (message.topic, message.payload, message.key) == ("alarms/7", b"5.0 degrees too hot", "7")
    assert [topic for topic, _ in letters(client)] == ["$dead/flow.alarms/plant/8/temp"]
