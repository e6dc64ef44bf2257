"""Flows' process, store and worker are killed with SIGKILL while a flow leads to a function: the ledger closes.

What the function returns for each message that was acknowledged is in the store once.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from penstock.sync import Client
from tests.support.flows_part import FlowsPart
from tests.support.steady import NumbersPublisher
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

BY_DAY, BY_NIGHT = 3, 20
PATIENCE_S = 120
FLOW = """
[flow.work]
from = "plant/#"
to = "python:tests.interop.functions_of_flows:copied"
start = "earliest"
retry_after_s = 0.1
"""


@pytest.mark.parametrize("kills", [BY_DAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)])
def test_function_results_come_once_through_kills(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    store = StoreProcess(tmp_path)
    flows = FlowsPart(store, tmp_path, FLOW)
    url = store.url.replace("tcp://", "penstock://")
    publisher = NumbersPublisher(url)
    try:
        for number in range(kills):
            seen = publisher.sent
            wait_until(lambda seen=seen: publisher.sent > seen + chance.randrange(40, 400), PATIENCE_S)  # type: ignore[misc]
            (store.restart, lambda: kill_worker(flows), flows.restart)[number % 3]()
        publisher.finish()
        acked = publisher.acked
        assert len(acked) > 100
        with Client(url, timeout_s=PATIENCE_S) as client:
            wait_until(lambda: acked <= set(returned(client)), PATIENCE_S)
            flows.terminate()
            found = returned(client)
            assert list(client.read("$dead/#")) == []
        assert len(found) == len(set(found))  # each once
        assert workers(flows) == []
    finally:
        publisher.finish()
        flows.kill()
        store.close()


def returned(client: Client) -> list[int]:
    return [int(message.payload) for message in client.read("out/#")]


def workers(flows: FlowsPart) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["pid", "cmdline"])
        if "penstock.flows.functions.worker" in (process.info["cmdline"] or ())
        and any(parent.pid == flows.process.pid for parent in parents(process))
    ]


def parents(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.parents()
    return []


def kill_worker(flows: FlowsPart) -> None:
    wait_until(lambda: bool(workers(flows)), PATIENCE_S)
    for process in workers(flows):
        with suppress(psutil.Error):
            process.kill()
