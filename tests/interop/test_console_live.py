"""The page of a topic that is open: it looks at what comes a few times a second, however much that is."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import expect

from store.wire.messages import Located, Scanned, Sought
from tests.interop.conftest import StartStore
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import Site
from tests.support.console_browser import ConsoleBrowsers
from tests.support.console_process import ConsoleProcess
from tests.support.store_protocol_relay import FrameWire

BURSTS, BURST = 4, 2_000
SHOWN = 20
LOOKS_PER_S = 4
LOOK_BYTES = 16 << 10
REQUESTS_OF_A_LOOK = 4
LARGE_BYTES = 300_000
MOST_SILENCES = 3


@pytest.fixture
def site(tmp_path: Path, start_client_store: StartStore) -> Iterator[Site]:
    site = Site(tmp_path, start_client_store())
    yield site
    site.console.close()


class Look(NamedTuple):
    """An event of the stream: what it shows, newest first, how many others came, and the id to go on from."""

    shown: list[str]
    others: int
    id: str


def looks_of(stream: HTTPResponse) -> Iterator[Look]:
    event_id, html, silences = "", "", 0
    for line in stream:
        silences += line == b": still there\n"
        assert silences < MOST_SILENCES, "nothing comes any more"
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "id":
            event_id = value
        elif field == "data":
            html += value
        elif not field and html:
            others = re.search(r"([\d,]+) more came", html)
            shown = re.findall(r'class="preview">([^<]*)<', html)
            yield Look(shown, int(others[1].replace(",", "")) if others else 0, event_id)
            html = ""


@contextmanager
def opened(address: str, topic: str, last_id: str = "") -> Iterator[Iterator[Look]]:
    """The live rows of the page of a topic, as its browser asks for them."""
    connection = HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"/topic?name={topic}")
        (path,) = re.findall(r'sse-connect="([^"]+)"', connection.getresponse().read().decode())
        connection.request("GET", path.replace("&amp;", "&"), headers={"Last-Event-ID": last_id} if last_id else {})
        stream = connection.getresponse()
        assert stream.status == 200
        assert stream.readline() == b"retry: 1000\n"
        yield looks_of(stream)
    finally:
        connection.close()


def until(looks: Iterator[Look], newest: str) -> list[Look]:
    """Looks up to the one that shows this payload first."""
    found: list[Look] = []
    while not found or not found[-1].shown[0].startswith(newest):
        found.append(next(looks))
    return found


def came(looks: list[Look]) -> int:
    return sum(len(look.shown) + look.others for look in looks)


def burst(site: Site, topic: str, name: str, number: int = BURST, size_bytes: int = 200) -> str:
    """Publish so many messages. Returns how the newest begins."""
    site.publish(topic, *(f"{name}-{i} ".ljust(size_bytes, "x") for i in range(number)))
    return f"{name}-{number - 1} "


def test_a_look_asks_the_store_for_as_much_whatever_the_rate(tmp_path: Path, start_client_store: StartStore) -> None:
    store = start_client_store()
    wire = FrameWire(int(store.url.rpartition(":")[2]))
    console = ConsoleProcess(tmp_path, f"tcp://127.0.0.1:{wire.port}")
    publisher = Site(tmp_path / "store-0", store)
    found: list[Look] = []
    try:
        with opened(console.client().address, "hot") as looks:
            begun_s, before, before_bytes = time.monotonic(), wire.said.copy(), wire.said_bytes
            for number in range(BURSTS):
                found += until(looks, burst(publisher, "hot", str(number)))
            asked, said_bytes = wire.said - before, wire.said_bytes - before_bytes
            most_looks = (time.monotonic() - begun_s) * LOOKS_PER_S + 1
    finally:
        publisher.console.close()
        console.close()
        wire.close()
    assert came(found) == BURSTS * BURST
    assert all(len(look.shown) <= SHOWN for look in found)
    assert sum(asked[each] for each in (Located, Sought, Scanned)) <= most_looks * REQUESTS_OF_A_LOOK
    assert said_bytes <= most_looks * LOOK_BYTES


def test_large_messages_do_not_make_a_look_large(site: Site) -> None:
    """All are shown or counted, some at a time."""
    with opened(site.client.address, "large") as looks:
        found = until(looks, burst(site, "large", "big", 12, LARGE_BYTES))
    assert came(found) == 12
    assert all(len(look.shown) == 1 for look in found)


def test_a_stream_that_broke_off_goes_on_without_a_gap_or_a_repeat(site: Site) -> None:
    burst(site, "resumed", "before", 3)
    with opened(site.client.address, "resumed") as looks:
        first = until(looks, burst(site, "resumed", "seen", 5))
    newest = burst(site, "resumed", "meanwhile", 7)
    with opened(site.client.address, "resumed", first[-1].id) as looks:
        second = until(looks, newest)
    assert (came(first), came(second)) == (5, 7)
    with opened(site.client.address, "resumed", str(10**12)) as looks:  # of another queue, with more messages
        assert until(looks, newest)[-1].others == 0


def test_a_page_goes_on_when_the_store_is_back(site: Site) -> None:
    with opened(site.client.address, "back") as looks:
        assert came(until(looks, burst(site, "back", "before", 2))) == 2
        site.store.kill()
        site.store.start()
        assert came(until(looks, burst(site, "back", "behind", 3))) == 3


def test_the_page_says_how_many_more_came(site: Site, browsers: ConsoleBrowsers) -> None:
    window = browsers.window(site.console.url)
    page = window.open("/topic?name=shown")
    expect(page.locator(".live-state")).to_have_text("live")
    for name in ("first", "second"):
        newest = burst(site, "shown", name)
        expect(page.locator("[data-live] li[id^=m] .preview").first).to_contain_text(newest)
    others = page.locator("[data-live] .others").all_text_contents()
    assert all(re.fullmatch(r"[\d,]+ more came meanwhile; open the page again for all", text) for text in others)
    counted = sum(int(text.split()[0].replace(",", "")) for text in others)
    assert page.locator("[data-live] li[id^=m]").count() + counted == 2 * BURST
    window.check()
    window.context.close()
