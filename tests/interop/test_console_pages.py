"""The console's pages in a real browser, beside real MQTT clients; an error on a page fails the test."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.conftest import SharedServers
from tests.interop.programs import PahoClient
from tests.support.console_browser import ConsoleBrowsers, ConsolePages, chromium, console_url
from tests.support.server_process import PenstockServer


@pytest.fixture(scope="module")
def browsers() -> Iterator[ConsoleBrowsers]:
    with chromium() as found:
        yield found


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
