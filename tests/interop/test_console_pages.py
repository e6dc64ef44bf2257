"""The console's pages in a real browser, beside real MQTT clients; an error on a page fails the test."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import expect

from tests.conftest import SharedServers
from tests.interop.programs import PahoClient
from tests.support.console_browser import ConsoleBrowsers, ConsolePages
from tests.support.console_process import console_url
from tests.support.server_process import PenstockServer


@pytest.fixture(scope="module")
def server(shared_server: SharedServers) -> PenstockServer:
    return shared_server(settings={"console.enabled": True, "console.listen": "127.0.0.1:0"}, flush="async")


@pytest.fixture
def pages(browsers: ConsoleBrowsers, server: PenstockServer) -> Iterator[ConsolePages]:
    window = browsers.window(console_url(server))
    yield window
    window.context.close()


def test_a_message_is_published_by_hand_and_its_payload_shown_in_each_form(
    pages: ConsolePages, server: PenstockServer
) -> None:
    witness = PahoClient(server.port).connect().subscribe("by/hand", 2)
    page = pages.open("/publish?topic=by/hand")
    page.get_by_label("Payload", exact=True).fill('{"temp": 21.50, "unit": "C", "list": [1, true, null]}')
    page.get_by_role("button", name="Publish").click()
    said = page.get_by_role("status")
    expect(said).to_contain_text("Stored in by/hand")
    assert witness.messages(1) == [("by/hand", b'{"temp": 21.50, "unit": "C", "list": [1, true, null]}')]
    said.get_by_role("link", name="id ").click()
    expect(page.locator(".payload-shown")).to_contain_text("temp: 21.50")
    page.get_by_role("link", name="Bytes").click()
    expect(page.locator(".payload-shown")).to_contain_text("000000")
    page.get_by_role("link", name="Text").click()
    expect(page.locator("pre.payload-shown")).to_contain_text('"unit": "C"')
    pages.check()


def test_a_publish_that_is_refused_says_why(pages: ConsolePages) -> None:
    page = pages.open("/publish")
    page.get_by_label("Topic").fill("no/+/wildcards")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status")).to_contain_text("wildcard")
    page.get_by_label("Topic").fill("a")
    page.get_by_label("The payload is").select_option("json")
    page.get_by_label("Payload", exact=True).fill("{")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status")).to_contain_text("not JSON")
    pages.check(refusals=2)


def published(server: PenstockServer, topic: str, payloads: Sequence[bytes]) -> None:
    PahoClient(server.port).connect().publish(topic, list(payloads), 1)


def test_a_topic_scrolls_from_the_newest_message_back_to_the_first(pages: ConsolePages, server: PenstockServer) -> None:
    published(server, "scroll/all", [b"number %d" % number for number in range(180)])
    page = pages.open("/topic?name=scroll/all")
    rows = page.locator("li[id^=m] .preview")
    expect(rows.first).to_have_text("number 179")
    while page.locator(".first").count() == 0:
        page.mouse.wheel(0, 20_000)
        page.wait_for_timeout(20)
    assert rows.all_text_contents() == [f"number {number}" for number in reversed(range(180))]
    pages.check()


def test_a_topic_goes_on_live_and_shows_the_payload_that_is_opened(pages: ConsolePages, server: PenstockServer) -> None:
    published(server, "live/one", [b"before"])
    page = pages.open("/topic?name=live/one")
    expect(page.locator(".live-state")).to_have_text("live")
    published(server, "live/one", [b'{"n": 1}', b'{"n": 2}'])
    rows = page.locator("li[id^=m] .preview")
    expect(rows).to_have_text(['{"n": 2}', '{"n": 1}', "before"])
    rows.first.click()
    expect(page.locator(".payload-shown")).to_contain_text("n: 2")
    pages.check()


def test_a_topic_jumps_to_a_time_and_from_there_to_newer_messages(pages: ConsolePages, server: PenstockServer) -> None:
    published(server, "jump/to", [b"early"])
    page = pages.open("/topic?name=jump/to")
    stored_at = page.locator("li[id^=m] time").first.get_attribute("datetime")
    assert stored_at is not None
    published(server, "jump/to", [b"late"])
    after_ms = datetime.fromisoformat(stored_at) + timedelta(milliseconds=1)
    page.get_by_label("Messages before (UTC)").fill(after_ms.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3])
    page.get_by_role("button", name="Go there").click()
    rows = page.locator("li[id^=m] .preview")
    expect(rows).to_have_text(["early"])
    page.get_by_role("link", name="Newer messages").click()
    expect(rows).to_have_text(["late", "early"])
    pages.check()


def test_topics_are_searched_while_one_types_and_found_level_by_level(
    pages: ConsolePages, server: PenstockServer
) -> None:
    for topic in ("tree/a/temp", "tree/a/hum", "tree/b", "tree/b!/x", "tree/b/y"):
        published(server, topic, [b"1"])
    page = pages.open("/topics")
    page.get_by_label("Search all topics").type("ee/a/t")
    expect(page.locator(".topics li")).to_have_count(1)
    expect(page.locator(".topics")).to_contain_text("1 message")
    page.get_by_role("link", name="tree/a/temp").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("tree/a/temp")
    page.get_by_role("link", name="tree").click()
    expect(page.locator(".topics li > span:first-child")).to_have_text(["a", "b", "b!"])
    pages.check()


def test_numbers_in_json_are_drawn_over_a_time(pages: ConsolePages, server: PenstockServer) -> None:
    published(server, "chart/me", [b'{"t": %d, "in": {"x": 0.5}}' % number for number in range(30)])
    page = pages.open("/topic?name=chart/me&view=chart")
    expect(page.locator("figure.chart")).to_have_attribute("data-points", "30")
    expect(page.locator(".u-legend")).to_contain_text("/t")
    page.get_by_label("Fields").select_option(["/in/x", "/t"])
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".u-legend .u-series")).to_have_count(3)
    expect(page.locator("figcaption")).to_contain_text("30 points of 30 messages")
    page.get_by_role("link", name="5 minutes").click()
    expect(page.locator("figure.chart")).to_have_attribute("data-points", "30")
    pages.check()
