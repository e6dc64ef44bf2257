"""Requests with an Idempotency-Key: each is stored once, and what is answered with a receipt is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import Site, payloads
from tests.support.stores import wait_until

LATER = {"topic": "later", "payload": "x", "delay": 3_600}


@pytest.fixture
def site(tmp_path: Path, start_client_store: StartStore) -> Iterator[Site]:
    site = Site(tmp_path, start_client_store())
    yield site
    site.console.close()


def offsets(site: Site, body: Any, key: str) -> list[int]:
    """log_offset of each message of a request that is answered with receipts."""
    answer = site.client.post("/messages", body, Idempotency_Key=key)
    assert answer.status == 201, answer
    return [each["log_offset"] for each in answer.json.get("receipts", [answer.json])]


def pending(site: Site) -> list[int]:
    return sorted(each["log_offset"] for each in site.client.get("/delayed").json["delayed"])


def test_an_idempotency_key_stores_once_also_beyond_a_kill(site: Site) -> None:
    message = {"topic": "once", "payload": "x"}
    many = [{"topic": "once", "payload": "a"}, {"topic": "twice", "payload": "b", "key": "mine"}]
    first = [
        site.client.post("/messages", body, Idempotency_Key=f"k{i}").json for i, body in enumerate((message, many))
    ]
    for again in (False, True):
        if again:
            site.console.restart()
        for number, body in enumerate((message, many)):
            same = site.client.post("/messages", body, Idempotency_Key=f"k{number}")
            assert (same.status, same.json) == (201, first[number])
        other = site.client.post("/messages", {**message, "payload": "y"}, Idempotency_Key="k0")
        assert (other.status, other.kind) == (422, "idempotency-key-reused")
    assert payloads(site.client.get("/messages", filter="once")) == ["x", "a"]
    assert payloads(site.client.get("/messages", filter="twice")) == ["b"]


@pytest.mark.parametrize("own", [{}, {"key": "sensor-7"}], ids=["the key of the request", "a key of its own"])
def test_a_delayed_message_is_not_taken_for_another_that_is_pending(site: Site, own: dict[str, str]) -> None:
    """Of the same topic and key: without an idempotency key, with another one, with another payload."""
    site.client.post("/messages", LATER | {"key": "sensor-7"})
    site.client.post("/messages", LATER | {"key": "idempotency-key:a"})
    bodies = {"a": LATER | own, "b": LATER | own, "c": LATER | own | {"payload": "y"}}
    stored = {key: offsets(site, body, key) for key, body in bodies.items()}
    assert len({at for (at,) in stored.values()}) == 3
    assert len(pending(site)) == 5
    site.console.restart()
    assert {key: offsets(site, body, key) for key, body in bodies.items()} == stored
    assert len(pending(site)) == 5


def test_delayed_messages_of_a_list(site: Site) -> None:
    many = [LATER | {"key": "k"}, {"topic": "now", "payload": "x"}, LATER | {"delay": 60}, LATER | {"key": "k"}]
    first = offsets(site, many, "m")
    site.console.restart()
    assert offsets(site, many, "m") == first
    assert len(pending(site)) == 3
    assert payloads(site.client.get("/messages", filter="now")) == ["x"]


def test_a_delayed_message_that_is_published_meanwhile(site: Site) -> None:
    soon = LATER | {"key": "k", "delay": 0.1}
    offsets(site, soon, "s")
    wait_until(lambda: payloads(site.client.get("/messages", filter="later")) == ["x"], TIMEOUT_S)
    site.console.restart()
    (at,) = offsets(site, soon, "s")
    (published,) = site.client.get("/messages", filter="later").json["messages"]
    assert published["log_offset"] == at
    assert pending(site) == []


def test_a_header_that_another_user_publishes_disturbs_no_request(site: Site) -> None:
    """Anybody may publish a message with this header and this key."""
    forged = {"topic": "once/a", "key": "k", "payload": "forged", "headers": {"idempotency-key": "9" * 5_000 + ":mine"}}
    assert site.client.post("/messages", forged).status == 201
    request = {"topic": "once/a", "key": "k", "payload": "mine"}
    assert site.client.post("/messages", request, Idempotency_Key="mine").status == 201


@pytest.mark.parametrize("change", [{"payload": "y"}, {"delay": 60}, {"retain": True}, {"headers": {"a": "b"}}])
def test_a_key_is_refused_for_another_request_and_not_spoilt_by_it(site: Site, change: dict[str, object]) -> None:
    first = offsets(site, LATER, "d")
    for again in (False, True):
        if again:
            site.console.restart()
        other = site.client.post("/messages", LATER | change, Idempotency_Key="d")
        assert (other.status, other.kind) == (422, "idempotency-key-reused")
        assert offsets(site, LATER, "d") == first
    assert pending(site) == first
