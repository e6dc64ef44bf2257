"""Reading everything: what `#` of a user of the default namespace has, and who reads the log itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Client
from penstock.sdk.errors import StoreRefused
from penstock.spark.errors import RequestFailed
from penstock.spark.remote import RemoteLog
from penstock.spark.store_options import store_of
from tests.support.mqtt_packet_client import set_passwords
from tests.support.store_process import StoreProcess

TOKENS = {"acme": "acme-secret", "": "for-all"}


READERS = """
default = "{default}"

[[rule]]
users = ["reader"]
allow = ["subscribe", "replay"]
topics = ["#", "$dead/#", "$SYS/#"]

[[rule]]
users = ["spark"]
allow = ["subscribe", "replay", "read_log"]
topics = ["#", "$dead/#"]
"""


@pytest.fixture(params=["deny", "allow", "no rules"])
def readers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[StoreProcess, bool]]:
    """A store that judges users of the default namespace, and whether it has rules."""
    passwords, rules = tmp_path / "passwords", tmp_path / "rules.toml"
    set_passwords(passwords, reader="reader", spark="spark")
    tokens = tmp_path / "tokens"
    tokens.write_text("acme acme-secret\n")
    tokens.chmod(0o600)
    rules.write_text(READERS.format(default=request.param))
    has_rules = request.param != "no rules"
    # a first store without users, in which tenants and the default namespace publish
    settings = {"wire.client_token": "for-all", "wire.namespace_tokens_file": tokens}
    running = StoreProcess(tmp_path, settings=settings)
    asyncio.run(_left_behind(running))
    running.close()
    judging = {"auth.password_file": passwords} | ({"auth.permissions_file": rules} if has_rules else {})
    running = StoreProcess(tmp_path, settings=settings | judging)
    yield running, has_rules
    running.close()


async def _left_behind(store: StoreProcess) -> None:
    for name in ("acme", ""):
        url = store.url.replace("tcp://", "penstock://")
        async with Client(url, token=TOKENS[name], timeout_s=10) as mine:
            await mine.publish("line/7", name.encode(), key="k", retain=True)
            await mine.publish("late", b"", delay=3_600)
            async with mine.subscribe("line/7", group="g") as members:
                assert await (await anext(aiter(members))).reject("no use")


def test_a_reader_of_the_default_namespace_reads_no_tenants(readers: tuple[StoreProcess, bool]) -> None:
    store, _ = readers
    asyncio.run(_reads_no_tenants(store))


async def _reads_no_tenants(store: StoreProcess) -> None:
    url = store.url.replace("tcp://", "penstock://")
    for namespace in ("", "*"):
        async with (
            asyncio.timeout(30),
            Client(url, token="for-all", user="reader", password="reader", namespace=namespace, timeout_s=10) as mine,
        ):
            assert [each.payload async for each in mine.read("#")] == [b""]
            assert [each.topic async for each in mine.read("$dead/#")] == ["$dead/g/line/7"]
            assert [each.topic async for each in mine.read("+/+")] == ["line/7"]
            assert {each.topic for each in await mine.find("k")} <= {"line/7", "$dead/g/line/7"}
            assert [each.topic async for each in mine.delayed()] == ["late"]
            for topic_filter in ("$ns:acme/#", "$ns:acme/line/7", "$ns:acme$dead/#"):
                with pytest.raises(StoreRefused):
                    _ = [each async for each in mine.read(topic_filter)]
                with pytest.raises(StoreRefused):
                    async with mine.subscribe(topic_filter, group="thief"):
                        pass


@pytest.mark.parametrize("user", ["reader", "spark"])
def test_spark_reads_the_log_by_a_right_of_its_own(readers: tuple[StoreProcess, bool], user: str) -> None:
    store, has_rules = readers
    url = store.url.replace("tcp://", "penstock://")
    log = RemoteLog(store_of(url, {"token": "for-all", "user": user, "password": user, "storetimeout": "0"}))
    may = user == "spark" and has_rules
    end = log.end() if may else 1
    reads: list[Callable[[], object]] = [
        log.end,
        lambda: list(log.messages(0, end, skips_lost=True)),
        lambda: log.is_record(0),
        lambda: log.nearest(0),
        lambda: list(log.queue_offsets(end, [b"line/7", b"$ns:acme/line/7"])),
        lambda: list(log.topic_messages("$ns:acme/line/7", 0, end)),
        lambda: list(log.matching_topics("$ns:acme/#")),
    ]
    for read in reads:
        if may:
            read()
        else:
            with pytest.raises(RequestFailed, match=r'"read_log"|\$ns:acme/'):
                read()
    if may:
        assert {b"line/7", b"$ns:acme/line/7"} <= {
            topic for each in log.messages(0, end) for topic in each.distinct_topics()[0]
        }
    assert [topic for found in log.matching_topics("#") for topic in found.topics] == ["line/7"] * may or not may
    log.close()
