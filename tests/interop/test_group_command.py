"""`penstock group` against a store that runs, and what its /metrics say."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sync import Client
from store.state.group_settings import GroupSettings, Strategy
from store.wire.group_messages import GroupOpen, GroupOpened, Pop, Popped, Receipt, Reject, Settled
from store.wire.messages import Append, Appended, Role
from tests.interop.programs import penstock, run
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_consumer import GroupConsumer
from tests.support.stores import batch_of, wait_until

TOKEN = "s3cret"


@pytest.fixture
def admin() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def store(tmp_path: Path, admin: str) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path, settings={"admin": admin, "wire.lease_ms": 60_000})
    yield store
    store.close()


def group(store: StoreProcess, *arguments: str, code: int = 0) -> bytes:
    return run(*penstock("group", *arguments, "--store", store.url), code=code)


def publish(store: StoreProcess, count: int, by: str = "publisher") -> None:
    peer = store.connect(by)
    assert isinstance(peer.call(Append(1), bytes(batch_of(*[b"x"] * count, topic=b"work/1"))), Appended)
    peer.close()


def listed(store: StoreProcess) -> dict[str, Any]:
    (row,) = json.loads(group(store, "list", "--json"))
    assert isinstance(row, dict)
    return row


def test_make_with_priorities(store: StoreProcess) -> None:
    """The group has what is published before its first consumer comes; who makes it is no consumer of it."""
    made = ("make", "workers", "line/#", "--tag")
    assert group(store, *made, "alarm > *") == b"workers over line/# begins at latest, tag alarm > *\n"
    with Client(store.url.replace("tcp://", "penstock://")) as client:
        client.publish("line/1", b"1")
        client.publish("line/1", b"2", tag="alarm")
        with client.subscribe("line/#", group="workers", prefetch=1) as subscription:
            for expected in (b"2", b"1"):
                message = next(iter(subscription))
                assert message.payload == expected
                message.ack()
    assert listed(store)["consumers"] == 0
    group(store, *made, "alarm > *", code=1)
    group(store, *made, "* > alarm", code=2)


def test_set(store: StoreProcess) -> None:
    consumer = GroupConsumer(store.url, "c", "billing", "work/#")
    said = group(store, "set", "billing", "--strategy", "least_in_flight")
    assert said == b"billing over work/# deals least_in_flight\n"
    wait_until(lambda: consumer.info().consumers == 1)
    info = consumer.info()
    assert (info.settings.strategy, info.consumers) == (Strategy.LEAST_IN_FLIGHT, 1)
    consumer.close()
    ordered = GroupConsumer(store.url, "d", "orders", "work/#", GroupSettings(partitions=4))
    group(store, "set", "orders", "--strategy", "round_robin", code=2)
    ordered.close()


def test_list_show_reset_drop(store: StoreProcess, admin: str) -> None:
    assert b"groups (0)" in group(store, "list")
    publish(store, 10)
    consumer = GroupConsumer(store.url, "c", "billing", "work/#", GroupSettings(retry_ms=60_000))
    handed = consumer.pop(8)
    consumer.ack(handed[:5])
    settled = consumer.peer.call(Reject(consumer.ref, [handed[5].receipt], None, ""))
    assert settled == Settled([])
    settled = consumer.peer.call(Reject(consumer.ref, [handed[6].receipt], None, "cannot be read"))
    assert settled == Settled([])
    row = listed(store)
    assert (row["group"], row["topic_filter"], row["consumers"]) == ("billing", "work/#", 1)
    assert (row["lag"], row["in_flight"], row["retries"], row["dead_letters"]) == (4, 1, 1, 1)
    assert (row["acked_offset"], row["next_offset"]) == (5, 10)
    with urllib.request.urlopen(f"http://{admin}/metrics") as page:
        metrics = page.read().decode()
    assert 'penstock_group_lag{group="billing:work/#"} 4.0' in metrics
    assert 'penstock_group_dead_letters_total{group="billing:work/#"} 1.0' in metrics

    shown = group(store, "show", "billing")
    assert b"billing over work/#" in shown
    assert b"60000" in shown
    (found,) = json.loads(group(store, "show", "billing", "--json"))
    assert found["settings"]["retry_ms"] == 60_000
    assert found["consumers"] == [{"peer": "c", "consumer": "", "in_flight": 1, "partitions": []}]

    assert b"continues at queue_offset 0 of 10" in group(store, "reset", "billing", "--to", "earliest")
    assert len(consumer.pop(100)) == 10
    group(store, "reset", "billing", "--to", "9")
    assert consumer.ack(handed[7:]) == [Receipt(*handed[7].receipt)]
    assert len(consumer.pop(100)) == 1
    group(store, "reset", "billing", "--to", "2020-01-01T00:00:00Z")
    assert listed(store)["lag"] == 10
    group(store, "reset", "billing", "--to", "latest", "--filter", "work/#")
    assert listed(store)["lag"] == 0
    group(store, "drop", "billing", code=1)
    consumer.close()
    store.restart()
    assert listed(store)["dead_letters"] == 1
    group(store, "drop", "billing")
    assert json.loads(group(store, "list", "--json")) == []


def test_invalid_group_commands_are_refused(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path, settings={"wire.token": TOKEN})
    try:
        assert b"token" in refused(store, "list")
        token = tmp_path / "penstock.toml"
        token.write_text(f'[gateway]\nstore_token = "{TOKEN}"\n')
        config = ("--config", str(token))
        assert b"there is no group g" in refused(store, "show", "g", *config)
        assert b"there is no group g over a" in refused(store, "reset", "g", "--to", "latest", "--filter", "a", *config)
        peer = store.connect("c", token=TOKEN)
        peer.close()
    finally:
        store.close()
    assert b"start `penstock store`" in refused(store, "list")


def refused(store: StoreProcess, *arguments: str) -> bytes:
    """The one line that says why."""
    command = penstock("group", *arguments, "--store", store.url)
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count(b"\n") == 1
    return done.stderr


def test_a_paused_group_deals_nothing(store: StoreProcess) -> None:
    consumer = GroupConsumer(store.url, "c", "billing", "work/#")
    publish(store, 3)
    held = consumer.pop(1)
    assert group(store, "pause", "billing") == b"billing over work/# is paused at queue_offset 0 of 3\n"
    assert group(store, "pause", "billing") == b"billing over work/# is paused at queue_offset 0 of 3\n"
    publish(store, 2, by="another")
    assert consumer.pop(10, wait_ms=200) == []
    assert consumer.ack(held) == []
    consumer.close()
    assert (listed(store)["paused"], listed(store)["lag"]) == (True, 4)
    store.kill()
    store.start()
    again = GroupConsumer(store.url, "d", "billing", "work/#", GroupSettings(max_deliveries=3))  # its settings change
    assert again.pop(10, wait_ms=200) == []
    (row,) = json.loads(group(store, "show", "billing", "--json"))
    assert (row["paused"], row["lag"], row["settings"]["max_deliveries"]) == (True, 4, 3)
    assert group(store, "resume", "billing") == b"billing over work/# goes on at queue_offset 1 of 5\n"
    assert len(again.pop(10)) == 4
    assert listed(store)["paused"] is False
    assert group(store, "pause", "nothing", code=1) == b""
    again.close()


def test_a_consumer_that_waits_is_served_when_its_group_goes_on(store: StoreProcess) -> None:
    for ordered in (0, 4):
        name = f"g{ordered}"
        consumer = GroupConsumer(store.url, f"c{ordered}", name, "work/#", GroupSettings(partitions=ordered), "latest")
        group(store, "pause", name)
        waiting = consumer.peer.ask(Pop(consumer.ref, 10, 1 << 20, 0, 20_000))
        publish(store, 1, by=name)
        group(store, "resume", name)
        popped = consumer.peer.answer(waiting)
        assert isinstance(popped, Popped)
        assert len(popped.handed) == 1
        consumer.close()


def test_list_says_which_tags_a_group_has(store: StoreProcess) -> None:
    peer = store.connect("c", Role.CLIENT)
    assert isinstance(peer.call(GroupOpen("plain", "work/#", "", None, "latest")), GroupOpened)
    assert b"tag" not in group(store, "list")
    opened = peer.call(GroupOpen("tagged", "work/#", "", None, "latest", tag="fast||slow"))
    assert isinstance(opened, GroupOpened)
    assert b"fast||slow" in group(store, "list")
    rows = json.loads(group(store, "list", "--json"))
    assert {row["group"]: row["tag"] for row in rows} == {"plain": None, "tagged": "fast||slow"}
    (shown,) = json.loads(group(store, "show", "tagged", "--json"))
    assert shown["tag"] == "fast||slow"
