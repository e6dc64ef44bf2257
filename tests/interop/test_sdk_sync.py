"""The client without asyncio, and what its documentation shows."""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys

import pytest

import penstock.sync
from penstock.sdk import address, filters, group_options, message_id, outgoing, positions
from penstock.sdk import client as client_module
from penstock.sdk.errors import CannotConnect, ClientClosed, NotFound, StoreRefused
from tests.support.server_process import ROOT, free_port


@pytest.mark.catalogue("D14")
def test_the_blocking_client(url: str) -> None:
    with penstock.sync.Client(url, autobatch=True) as client:
        receipt = client.publish("s", b"0", key="k")
        futures = [client.send("s", b"%d" % number) for number in range(1, 1_000)]
        assert [future.result().queue_offset for future in futures] == list(range(1, 1_000))
        with client.batch() as batch:
            batch.publish("s", b"1000")
            assert len(batch) == 1
        assert batch.receipts[0].queue_offset == 1_000
        assert client.get(receipt.message_id).key == "k"
        assert [message.payload for message in client.read("s")] == [b"%d" % number for number in range(1_001)]
        assert sum(len(each) for each in client.read("#", start=receipt.log_offset).batches()) == 1_001
        for message in client.read("s", stop=None):
            if message.payload == b"1000":
                break
        with pytest.raises(NotFound):
            client.get(message_id.parse_message_id(receipt.message_id)[0].message_id(receipt.log_offset + 8))
    with pytest.raises(ClientClosed):
        client.publish("s", b"x")
    with pytest.raises(CannotConnect), penstock.sync.Client(f"penstock://127.0.0.1:{free_port()}", timeout_s=0.3):
        pass


def test_the_blocking_client_consumes(url: str) -> None:
    with penstock.sync.Client(url) as client:
        sent = [client.send("t", b"%d" % number) for number in range(1_000)]
        assert len([future.result() for future in sent]) == 1_000
        for seen, message in enumerate(client.subscribe("t", group="g", invisible=3_600), 1):
            assert message.queue_offset == int(message.payload) == seen - 1
            assert message.deliveries == 1
            assert message.ack(wait=seen % 100 == 0)
            if seen == 700:
                break
        with client.subscribe("t", group="g") as subscription:
            payloads: list[bytes] = []
            for batch in subscription.batches():
                assert len(batch) == len([message.payload for message in batch])
                payloads += batch.payloads()
                assert batch.ack()
                if len(payloads) >= 300:  # what was given back comes before or behind the rest
                    break
            assert sorted(map(int, payloads)) == list(range(700, 1_000))
        client.publish("t", b"last")
        with client.subscribe("t", group="g") as subscription:
            message = next(iter(subscription))
            assert message.extend(60)
            assert message.retry(after=0)
        with client.subscribe("t", group="g") as subscription:
            message = next(iter(subscription))
            assert message.reject("no use")
        with pytest.raises(StoreRefused):
            next(iter(client.subscribe("a/#/b", group="g")))


def test_the_examples_in_the_docstrings(url: str) -> None:
    modules = (address, client_module, filters, group_options, message_id, outgoing, positions, penstock.sync)
    for module in modules:
        result = doctest.testmod(importlib.import_module(module.__name__), extraglobs={"store_url": url})
        assert result.attempted
        assert not result.failed


def test_the_package_is_light_and_the_client_needs_little() -> None:
    script = (
        "import sys, json, penstock; first = len([m for m in sys.modules if m.startswith(('penstock', 'store'))]);"
        "penstock.Client; import penstock.sync; print(json.dumps([first, sorted(sys.modules)]))"
    )
    first, modules = json.loads(subprocess.check_output([sys.executable, "-c", script], cwd=ROOT))
    assert first == 1
    unwanted = {"gateway", "notify", "lightqueue", "rocksdict", "uvloop", "typer", "pydantic"}
    assert {name.split(".")[0] for name in modules} & unwanted == set()
