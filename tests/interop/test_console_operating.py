"""The console's pages for operators, in a real browser: what they change, what they refuse, and that nothing which a
device sends becomes more than text."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from notify.links.address import StoreAddress
from penstock.store_client import StoreClient
from store.wire.log_messages import HoldLog, LogHeld, ReaderAt, ReaderNoted
from tests.conftest import ServerFactory, SharedServers
from tests.interop.programs import PahoClient
from tests.support.console_browser import ConsoleBrowsers, ConsolePages, axe_script
from tests.support.console_process import console_url
from tests.support.mqtt_packet_client import set_passwords
from tests.support.server_process import PenstockServer

CONSOLE = {"console.enabled": True, "console.listen": "127.0.0.1:0", "console.sample_s": 1}
SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
TURNED = "left\u202etfel\x1b[31m"
PAGES = ("/", "/topics", "/clients", "/groups", "/delayed", "/retained", "/publish", "/talkers", "/log")
RULES = """
[[rule]]
users = ["ops"]
allow = ["publish", "subscribe", "replay", "retain", "read_log", "admin"]
topics = ["#"]

[[rule]]
users = ["alice"]
allow = ["publish", "subscribe", "replay"]
topics = ["alice/#"]
"""


@pytest.fixture(scope="module")
def server(shared_server: SharedServers) -> PenstockServer:
    return shared_server(settings=CONSOLE, flush="async")


@pytest.fixture
def pages(browsers: ConsoleBrowsers, server: PenstockServer) -> Iterator[ConsolePages]:
    window = browsers.window(console_url(server))
    yield window
    window.context.close()


def test_a_client_is_found_looked_at_disconnected_and_its_session_ended(
    pages: ConsolePages, server: PenstockServer
) -> None:
    PahoClient(server.port, client_id="pump-7", expiry_s=3_600, clean=False).connect().subscribe("pumps/+/state", 1)
    PahoClient(server.port, client_id="pumpkin").connect()  # goes from the table with the last letter that is typed
    page = pages.open("/clients")
    page.get_by_label("Client ids that begin with").type("pump-")
    expect(page).to_have_url(re.compile("prefix=pump-$|prefix=pump-&"))
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator(".htmx-request, .htmx-swapping, .htmx-settling")).to_have_count(0)  # a row may be replaced
    page.get_by_role("link", name="pump-7").click()
    expect(page.locator("tbody")).to_contain_text("pumps/+/state")
    expect(page.locator("dl.facts")).to_contain_text("connected since")
    page.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_role("status")).to_contain_text("Disconnected pump-7")
    page.get_by_text("End the session…").click()
    page.get_by_role("button", name="End the session").click()
    expect(page.get_by_role("status")).to_contain_text("Session ended pump-7")
    pages.check()


def test_the_overview_shows_rates_and_draws_them(pages: ConsolePages, server: PenstockServer) -> None:
    publisher = PahoClient(server.port).connect()
    page = pages.open("/")
    expect(page.locator("figure.chart").first).to_have_attribute("data-points", re.compile("[1-9]"))
    publisher.publish("overview/one", [b"x"] * 500, 1)
    rate = page.locator(".figures > div").first.locator("dd")
    expect(rate).to_have_text(re.compile(r"^[\d,.]*[1-9][\d,.]*/s$"))
    expect(page.get_by_text("Nothing is wrong.")).to_be_visible()
    expect(page.locator(".figures > div", has_text="clients").locator("dd")).to_have_text(re.compile("^[1-9]"))
    expect(page.get_by_role("region", name="Gateways")).to_have_count(0)  # it is this process
    pages.check()


def test_retained_messages_are_listed_and_removed(pages: ConsolePages, server: PenstockServer) -> None:
    PahoClient(server.port).connect().client.publish("kept/here", b"21", 1, retain=True).wait_for_publish(10)
    page = pages.open("/retained?filter=kept/%23")
    expect(page.locator("tbody")).to_contain_text("kept/here")
    page.get_by_role("button", name="Remove the retained message of kept/here").click()
    expect(page.get_by_role("status")).to_contain_text("Removed the retained message of kept/here")
    expect(page.locator("tbody tr")).to_have_count(0)
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(0)
    pages.check()


def test_the_log_says_what_it_holds_and_who_wrote_it(pages: ConsolePages, server: PenstockServer) -> None:
    PahoClient(server.port, client_id="talkative").connect().publish("talk/much", [b"x" * 10_000] * 50, 1)
    page = pages.open("/talkers?span=hour")
    expect(page.get_by_role("region", name="Clients by bytes")).to_contain_text("talkative")
    expect(page.get_by_role("region", name="Topics by bytes")).to_contain_text("500 KB")
    page.get_by_role("link", name="Log", exact=True).click()
    page.locator("tbody a").first.click()
    expect(page.get_by_role("region", name="Records")).to_contain_text("message")
    expect(page.get_by_role("region", name="Publishers")).to_contain_text("talkative")
    pages.check()


def test_console_page_of_a_topics_publishers_and_subscribers(pages: ConsolePages, server: PenstockServer) -> None:
    PahoClient(server.port, client_id="reader-1", expiry_s=3_600, clean=False).connect().subscribe("asked/+", 1)
    PahoClient(server.port, client_id="writer-1").connect().publish("asked/for", [b"1", b"2"], 1)
    page = pages.open("/topic/readers?name=asked/for")
    expect(page.get_by_role("region", name="Publishers")).to_contain_text("writer-1")
    expect(page.get_by_role("region", name="Subscribers")).to_contain_text("asked/+")
    pages.check()


def test_a_delayed_message_is_cancelled(pages: ConsolePages, server: PenstockServer) -> None:
    page = pages.open("/publish?topic=later/on")
    page.get_by_label("Payload", exact=True).fill("soon")
    page.get_by_text("Key, headers, delay, expiry").click()
    page.get_by_label("Publish after so many seconds").fill("600")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status")).to_contain_text("to be published at")
    page.get_by_role("link", name="Delayed").click()
    page.get_by_role("button", name="Cancel the message to later/on").click()
    expect(page.get_by_role("status")).to_contain_text("Cancelled")
    expect(page.locator("tbody tr", has_text="later/on")).to_have_count(0)
    pages.check()


def test_device_input_is_plain_text_on_every_page(pages: ConsolePages, server: PenstockServer) -> None:
    topic, client_id = f"evil/{SCRIPT}/{TURNED.replace(chr(27), '')}", f"{IMAGE}-{SCRIPT}"
    evil = (
        PahoClient(server.port, client_id=client_id, expiry_s=3_600, clean=False)
        .connect()
        .subscribe(f"evil/{IMAGE}", 1)
    )
    evil.client.publish(topic, f"{IMAGE}{TURNED}", 1, retain=True).wait_for_publish(10)
    evil.publish(topic, [f'{{"{SCRIPT}": "{IMAGE}", "n": 1}}'.encode(), b"\xff\x00<b>"], 1)
    addresses = [
        "/topics?prefix=evil/",
        f"/topics?search={quote(SCRIPT)}",
        f"/topics?prefix={quote('evil/' + SCRIPT + '/')}",
        f"/topic?name={quote(topic)}",
        f"/topic?name={quote(topic)}&view=chart",
        f"/topic/readers?name={quote(topic)}",
        f"/publish?topic={quote(topic)}",
        f"/client?id={quote(client_id)}",
        f"/clients?prefix={quote(IMAGE)}",
        f"/login?next={quote('javascript:alert(1)')}",
        *("/retained", "/talkers?span=hour", "/log/segment?start=0", "/"),
    ]
    for address in addresses:
        page = pages.open(address)
        assert page.locator("img, main script, iframe, b").count() == 0, address
        assert "\u202e" not in page.inner_text("body"), address
        page.close()
    page = pages.open(f"/topic?name={quote(topic)}")
    expect(page.locator("h1")).to_contain_text("⟨U+202E⟩")
    rows = page.locator("li[id^=m] > details > summary")
    for number in range(3):
        rows.nth(number).click()
        expect(page.locator(".payload-shown")).to_have_count(number + 1)
    expect(page.locator("main")).to_contain_text("⟨U+001B⟩[31m")
    assert page.locator("img, main script, b").count() == 0
    pages.check()


def violations(page: Page) -> list[str]:
    """What the accessibility checker finds on a page."""
    page.evaluate(axe_script().read_text())
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
    return [f"{each['id']}: {node['html']}" for each in found["violations"] for node in each["nodes"]]


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["light", "dark"])
def test_pages_are_accessible_and_fit_a_phone(browsers: ConsoleBrowsers, server: PenstockServer, dark: bool) -> None:
    PahoClient(server.port, client_id="access-1").connect().publish("access/ible", [b'{"n": 1}', b"2"], 1)
    window = browsers.window(console_url(server), dark=dark, width=390 if dark else 1280)
    for address in (
        *PAGES,
        "/topic?name=access/ible",
        "/topic?name=access/ible&view=chart",
        "/login",
        "/topic?name=%23",
    ):
        page = window.open(address)
        page.wait_for_load_state("load")
        assert violations(page) == [], address
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
        page.close()
    window.check(refusals=1)
    window.context.close()


def test_the_keyboard_alone_reaches_a_payload(pages: ConsolePages, server: PenstockServer) -> None:
    PahoClient(server.port).connect().publish("keys/only", [b"by keyboard"], 1)
    page = pages.open("/topic?name=keys/only")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the page")
    page.keyboard.press("Enter")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    expect(page.locator("pre.payload-shown")).to_have_text("by keyboard")
    pages.check()


def test_without_scripts_links_and_forms_still_show_everything(
    browsers: ConsoleBrowsers, server: PenstockServer
) -> None:
    PahoClient(server.port).connect().publish("plain/pages", [b"%d" % number for number in range(60)], 1)
    window = browsers.window(console_url(server), scripts=False)
    page = window.open("/topics?search=plain/")
    page.get_by_role("link", name="plain/pages").click()
    page.get_by_role("link", name="Older messages").click()
    expect(page.locator("li[id^=m] .preview").last).to_have_text("0")
    window.check()
    window.context.close()


# --- users


@pytest.fixture
def judging(penstock_server: ServerFactory, tmp_path: Path) -> PenstockServer:
    passwords, rules = tmp_path / "passwords", tmp_path / "rules.toml"
    rules.write_text(RULES)
    set_passwords(passwords, alice="alice", ops="ops")
    settings = {**CONSOLE, "auth.password_file": passwords, "auth.permissions_file": rules}
    return penstock_server(settings=settings, flush="async")


def logged_in(window: ConsolePages, user: str, path: str = "/topics") -> Page:
    page = window.open(path)
    page.get_by_label("User").fill(user)
    page.get_by_label("Password or token").fill(user)
    page.get_by_role("button", name="Log in").click()
    return page


def test_readers_of_the_log_are_shown_and_forgotten(pages: ConsolePages, server: PenstockServer) -> None:
    address = StoreAddress.parse(f"unix://{server.data.absolute()}/console.sock")
    with StoreClient(address, "", None) as store:
        store.call(HoldLog("nightly-export", None, 0, "refuse"), LogHeld)
        store.call(ReaderAt("a-stream", 0), ReaderNoted)
    page = pages.open("/log")
    rows = page.get_by_role("region", name="Readers").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("does not wait")
    expect(rows.nth(1)).to_contain_text("waits, then messages are refused")
    api = f"{console_url(server)}/api/v1/log-readers"
    (_, held) = pages.context.request.get(api).json()["readers"]
    assert (held["name"], held["holds"], held["log_offset"]) == ("nightly-export", True, 0)
    for expected in (204, 404):
        assert pages.context.request.delete(f"{api}/nightly-export").status == expected
    page.reload()
    expect(page.get_by_role("region", name="Readers").locator("tbody tr")).to_have_count(1)


def test_a_user_logs_in_sees_his_topics_only_and_logs_out(browsers: ConsoleBrowsers, judging: PenstockServer) -> None:
    ops, alice = browsers.window(console_url(judging)), browsers.window(console_url(judging))
    page = logged_in(ops, "ops", "/publish?topic=secret/plan")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#said")).to_contain_text("Stored in secret/plan")
    page = logged_in(alice, "alice", "/topics?prefix=alice/")
    expect(page.locator("h1")).to_have_text("Topics")
    refused = ["/topics?prefix=secret/", "/topic?name=secret/plan", "/clients", "/talkers", "/log"]
    for address in refused:
        page.goto(alice.url + address)
        expect(page.locator(".problem")).to_be_visible()
    for address in ("/", "/topics", "/topics?search=plan", "/retained", *refused):
        page.goto(alice.url + address)
        assert "plan" not in "".join(page.locator(".topics, .messages, tbody").all_text_contents())
    page.goto(alice.url + "/")
    page.get_by_role("link", name="alice/", exact=True).click()
    expect(page.get_by_role("status").last).to_have_text("0 topics here and below")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    page.goto(alice.url + "/topics?prefix=alice/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    ops.check()
    alice.check(refusals=2 * len(refused))


def test_a_wrong_password_and_a_change_without_its_token_are_refused(
    browsers: ConsoleBrowsers, judging: PenstockServer
) -> None:
    window = browsers.window(console_url(judging))
    page = window.open("/login")
    page.get_by_label("User").fill("ops")
    page.get_by_label("Password or token").fill("guess")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".problem")).to_be_visible()
    page.get_by_label("User").fill("ops")
    page.get_by_label("Password or token").fill("ops")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    statuses = page.evaluate(
        "Promise.all(['/publish', '/client/end', '/retained/remove', '/logout'].map("
        "(path) => fetch(path, {method: 'POST', body: new URLSearchParams({topic: 'a', id: 'b'})})"
        ".then((answer) => answer.status)))"
    )
    assert statuses == [403] * 4
    page.goto(window.url + "/topics")
    expect(page.locator(".topics li")).to_have_count(0)
    window.check(refusals=5)


# --- pictures, for README and docs/console.md


def test_pictures(browsers: ConsoleBrowsers, penstock_server: ServerFactory, tmp_path: Path) -> None:
    """With PENSTOCK_PICTURES=docs/images they go there."""
    folder = Path(os.environ.get("PENSTOCK_PICTURES", tmp_path))
    folder.mkdir(exist_ok=True)
    points = 15 if "PENSTOCK_PICTURES" in os.environ else 2
    server = penstock_server(settings=CONSOLE, flush="async")
    names = [f"press-{number}" for number in range(4)]
    devices = [PahoClient(server.port, client_id=name, expiry_s=3_600, clean=False).connect() for name in names]
    devices[0].subscribe("press/+/state", 1)
    window = browsers.window(console_url(server))
    page = window.open("/?span=15m")
    chart, step = page.locator("figure.chart").first, 0
    while int(chart.get_attribute("data-points") or 0) < points:
        for number, device in enumerate(devices):
            state = b'{"temp": %.2f, "strokes": %d}' % (60 + number + step * 7 % 11 / 4, step)
            device.publish(f"press/{number}/state", [state], 1)
        step += 1
    pictures = {"overview": "/", "topic": "/topic?name=press/1/state", "chart": "/topic?name=press/1/state&view=chart"}
    for name, address in pictures.items():
        if address != "/":
            page.goto(window.url + address)
        if name == "chart":
            expect(chart).to_have_attribute("data-points", re.compile("[1-9]"))
        if name == "topic":
            page.locator("li[id^=m] > details > summary").first.click()
            expect(page.locator(".payload-shown")).to_be_visible()
        page.screenshot(path=folder / f"console-{name}.png")
        assert 10_000 < (folder / f"console-{name}.png").stat().st_size < 200_000
    window.check()
