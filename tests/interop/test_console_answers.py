"""What one answer of the console may have: bytes bound it, decompressed ones, and the next page goes on from there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.sdk.compression import Compression
from penstock.sync import Client
from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import Site

MIB = 1 << 20
ANSWER_BYTES = 4 * MIB
NUMBER = 60
PAYLOAD = b"x" * (3 * MIB)
BOMB = b"x" * (40 * MIB)
KEPT = 3
DENSE = 600


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from tests.support.store_process import StoreProcess

    folder = tmp_path_factory.mktemp("answers")
    store = StoreProcess(folder, settings={"store.max_plain_bytes": 2 * len(BOMB)})
    site = Site(folder, store)
    yield site
    site.console.close()
    store.close()


@pytest.fixture(scope="module")
def compressed(site: Site) -> Site:
    """60 payloads of 3 MiB in some kB of the log, and some retained ones."""
    with publisher(site) as client:
        for number in range(NUMBER):
            client.publish("packed/a", PAYLOAD, key="k", headers={"n": str(number)})
        for number in range(KEPT):
            client.publish(f"kept/{number}", PAYLOAD, retain=True)
    return site


def publisher(site: Site) -> Client:
    return Client(site.store.url.replace("tcp://", "penstock://"), compress=Compression())


def pages(site: Site, path: str, cursor: str = "cursor", part: str = "messages", **query: Any) -> list[list[Any]]:
    """What all pages have, each of which is small enough."""
    found: list[list[Any]] = []
    goes_on: dict[str, Any] = {}
    while True:
        answer = site.client.get(path, **query, **goes_on)
        assert answer.status == 200, answer.body[:1_000]
        assert len(answer.body) < ANSWER_BYTES + MIB // 2
        found.append(answer.json[part])
        if answer.json["next"] is None:
            return found
        goes_on = {cursor: answer.json["next"]}


@pytest.mark.parametrize(
    ("query", "newest_first"),
    [
        ({"filter": "packed/a"}, False),
        ({"filter": "packed/a", "order": "desc"}, True),
        ({"filter": "packed/#", "order": "desc"}, True),
        ({"filter": "packed/+"}, False),
        ({"filter": "packed/+", "order": "desc"}, True),
        ({"filter": "packed/a", "key": "k"}, True),
    ],
    ids=["topic", "topic desc", "level desc", "filter", "filter desc", "key"],
)
def test_pages_of_compressed_payloads(compressed: Site, query: dict[str, str], newest_first: bool) -> None:
    found = pages(compressed, "/messages", limit=1_000, **query)
    numbers = [int(each["headers"]["n"]) for page in found for each in page]
    assert numbers == (list(range(NUMBER))[::-1] if newest_first else list(range(NUMBER)))
    assert all(len(page) == 1 for page in found if page)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("topic_filter", ["large/a", "large/+"])
def test_pages_of_large_payloads(site: Site, order: str, topic_filter: str) -> None:
    sizes = [5, MIB, 10, 2 * MIB, 2 * MIB, 3 * MIB, 1, 2, 3, MIB]
    if not site.client.get("/messages", filter="large/a", limit=1).json["messages"]:
        for size in sizes:
            site.publish("large/a", "x" * size)
    found = pages(site, "/messages", filter=topic_filter, limit=1_000, order=order)
    assert [len(each["payload"]) for page in found for each in page] == (sizes if order == "asc" else sizes[::-1])
    assert 3 <= len([page for page in found if page]) <= 5


def test_pages_of_retained_messages(compressed: Site) -> None:
    found = pages(compressed, "/retained", "after", filter="kept/#")
    assert [each["topic"] for page in found for each in page] == [f"kept/{number}" for number in range(KEPT)]
    assert all(len(page) == 1 for page in found)


@pytest.mark.parametrize("query", [{}, {"search": "kept/"}], ids=["tree", "search"])
def test_topics_with_their_last_messages(compressed: Site, query: dict[str, str]) -> None:
    found = pages(compressed, "/topics", "after", "topics", prefix="kept/", last="true", **query)
    assert [each["topic"] for page in found for each in page] == [f"kept/{number}" for number in range(KEPT)]
    assert all(len(each["last"]["payload"]) == len(PAYLOAD) for page in found for each in page)


def test_streams_of_compressed_payloads_take_little_memory(compressed: Site) -> None:
    process = psutil.Process(compressed.console.process.pid)
    before = process.memory_info().rss
    path = "/messages?filter=packed/a&start=earliest"
    connection, stream = compressed.client.begin("GET", path, Accept="application/x-ndjson")
    try:
        numbers = [int(json.loads(line)["headers"]["n"]) for line in stream]
        assert numbers == list(range(NUMBER))
        with compressed.client.events(path) as events:
            assert [int(next(events)[1]["headers"]["n"]) for _ in range(NUMBER)] == numbers
    finally:
        connection.close()
    assert process.memory_info().rss - before < 80 * MIB


def test_payload_that_states_a_huge_size_is_not_decompressed(site: Site) -> None:
    with publisher(site) as client:
        message_id = client.publish("bomb/a", BOMB, retain=True).message_id
        client.publish("bomb/a", "behind")
    process = psutil.Process(site.console.process.pid)
    before = process.memory_info().rss
    page = site.client.get("/messages", filter="bomb/a").json["messages"]
    assert [each.get("payload") for each in page] == [None, "behind"]
    one = site.client.get(f"/messages/{message_id}").json
    for each in (page[0], one, site.client.get("/retained", filter="bomb/#").json["messages"][0]):
        assert str(len(BOMB)) in each["unreadable"]
    assert process.memory_info().rss - before < len(BOMB) // 2


@pytest.fixture(scope="module")
def dense(site: Site) -> Site:
    """JSON of 1 MiB that takes some ms to look into, in few bytes of the log."""
    text = b'{"v": 1, "w": [' + b"1," * (MIB // 2 - 100) + b"1]}"
    with publisher(site) as client:
        for _ in range(DENSE):
            client.publish("dense/a", text)
    return site


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/series?topic=dense/a&field=v&start=-1h",
        "/topic/chart?name=dense/a&field=/v",
        "/topic?name=dense/a&view=chart",
    ],
    ids=["series", "chart", "fields"],
)
def test_large_json_stops_nobody(dense: Site, path: str) -> None:
    """Others are answered before it."""
    answers: list[bytes] = []

    def ask() -> None:
        connection = HTTPConnection(dense.client.address, timeout=TIMEOUT_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        answers.append(answer.read())
        connection.close()

    asking = threading.Thread(target=ask)
    asking.start()
    answered = -1  # the last one comes when it has ended
    while asking.is_alive():
        assert dense.client.get("/health").status == 200
        answered += 1
    assert answered >= 2
    (found,) = answers
    if "view=chart" in path:
        assert b"/v" in found
        return
    told = json.loads(found)
    read = told["messages"] if "messages" in told else len(told["times"])
    assert 0 < read <= DENSE
    if "note" in told:
        assert ("choose a shorter time" in told["note"]) == (read < DENSE)
    else:
        assert told["is_complete"] == (read == DENSE)


def test_a_page_that_fits_is_one(tmp_path: Path, start_client_store: StartStore) -> None:
    site = Site(tmp_path, start_client_store())
    try:
        site.publish("a", *[str(number) for number in range(500)])
        for order in ("asc", "desc"):
            (page,) = pages(site, "/messages", filter="a", limit=1_000, order=order)
            assert len(page) == 500
    finally:
        site.console.close()
