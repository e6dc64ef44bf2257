"""The flows' process and the store are killed with SIGKILL amid their work: the ledger closes.

What HTTP took is all that was acknowledged, some of it perhaps twice, with the same id. A file has the same in whole
lines. A store has each message once.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sync import Client
from tests.support.flows_part import FlowsPart
from tests.support.hook_server import CUT, HookServer, Request
from tests.support.steady import NumbersPublisher
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

BY_DAY, BY_NIGHT = 2, 20
PATIENCE_S = 120
FLOWS = """
[flow.hook]
from = "plant/#"
to = "{hook}"
timeout_s = 2
retry_after_s = 0.05
attempts = 1000
[flow.file]
from = "plant/#"
to = "file://{file}"
[flow.copy]
from = "plant/#"
to = "penstock:"
map = {{ topic = "copy/{{levels[1]}}" }}
"""


@pytest.fixture
def hook() -> Iterator[HookServer]:
    hook = HookServer()
    yield hook
    hook.close()


@pytest.mark.catalogue("I33")
@pytest.mark.parametrize("kills", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
def test_the_ledger_closes_after_kills_of_flows_and_store(tmp_path: Path, hook: HookServer, kills: int) -> None:
    chance = random.Random(kills)

    def moody(_: Request) -> int:
        return chance.choices((204, 500, 503, CUT), (90, 5, 4, 1))[0]

    hook.answer = moody
    store = StoreProcess(tmp_path)
    url = store.url.replace("tcp://", "penstock://")
    lines = tmp_path / "lines.ndjson"
    flows = FlowsPart(store, tmp_path, FLOWS.format(hook=hook.url, file=lines))
    publisher = NumbersPublisher(url, pause_s=0.1)  # the hook is away for a while after a tenth of what it is sent
    try:
        for number in range(kills):
            seen = len(hook.taken)
            wait_until(lambda seen=seen: len(hook.taken) > seen + 50, PATIENCE_S)  # type: ignore[misc]
            (flows if number % 2 else store).restart()
        publisher.finish()
        acked = publisher.acked
        assert len(acked) > 100
        wait_until(lambda: acked <= {int(str(request.event["data"])) for request in hook.taken}, PATIENCE_S)
        wait_until(lambda: acked <= set(in_file(lines)), PATIENCE_S)
        with Client(url) as client:
            wait_until(lambda: acked <= set(copied(client)), PATIENCE_S)
            assert list(client.read("$dead/#")) == []
            assert max(Counter(copied(client)).values()) == 1
            ids = {message.message_id: int(message.payload) for message in client.read("plant/#")}
        for request in hook.taken:
            assert ids[str(request.event["id"])] == request.event["data"]
    finally:
        publisher.finish()
        flows.kill()
        store.close()


def in_file(path: Path) -> list[int]:
    return [int(json.loads(line)["data"]) for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"]


def copied(client: Client) -> list[int]:
    return [int(message.payload) for message in client.read("copy/#")]
