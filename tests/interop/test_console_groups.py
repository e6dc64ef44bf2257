"""Groups at the console, by its HTTP API and its pages: they are paused, and their dead letters are settled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from penstock.sync import Client
from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_process import ANYWHERE, basic, passwords
from tests.support.console_browser import ConsoleBrowsers, ConsolePages
from tests.support.console_process import WebClient, console_url
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

RULES = """
[[rule]]
users = ["root"]
allow = ["publish", "retain", "subscribe", "replay", "read_log", "admin"]
topics = ["#", "$dead/#"]

[[rule]]
users = ["reader"]
allow = ["subscribe", "replay"]
topics = ["line/#"]
"""
OVER_LINE = "?filter=line/%23"


class GroupSite:
    """A server with users and a console."""

    def __init__(self, server: PenstockServer) -> None:
        self.server = server
        self.url = console_url(server)
        self.root, self.reader = (WebClient(self.url, Authorization=basic(name, "s3c")) for name in ("root", "reader"))

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Of the SDK."""
        with Client(f"unix://{self.server.data.absolute()}/console.sock", user="root", password="s3c") as client:
            yield client

    def make_group(self, name: str, topic_filter: str, *payloads: str) -> None:
        """A group in front of messages to the filter's first topic."""
        with self.client() as client, client.subscribe(topic_filter, group=name, start="now"):
            pass
        topic = topic_filter.replace("#", "1")
        for payload in payloads:
            assert self.root.post("/messages", {"topic": topic, "payload": payload}).status == 201

    def group(self, name: str) -> Any:
        (found,) = self.root.get("/groups", name=name).json["groups"]
        return found


@pytest.fixture
def site(penstock_server: ServerFactory, tmp_path: Path) -> GroupSite:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    file = passwords(tmp_path, root="s3c", reader="s3c")
    users = {"auth.password_file": file, "auth.permissions_file": rules}
    return GroupSite(penstock_server(settings={**ANYWHERE, **users}, flush="async"))


@pytest.fixture
def pages(browsers: ConsoleBrowsers, site: GroupSite) -> Iterator[ConsolePages]:
    """root is logged in."""
    window = browsers.window(site.url)
    page = window.open("/groups")
    page.get_by_label("User").fill("root")
    page.get_by_label("Password or token").fill("s3c")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("Consumer groups")
    page.close()
    yield window
    window.context.close()


# --- pausing


def test_a_paused_group_hands_out_nothing_until_it_goes_on(site: GroupSite) -> None:
    site.make_group("billing", "line/#", "1", "2")
    assert not site.group("billing")["paused"]
    for _ in range(2):  # the second one finds it so
        paused = site.root.post(f"/groups/billing/pause{OVER_LINE}")
        assert (paused.status, paused.json) == (200, {"paused": True, "queue_offset": 0})
    assert site.group("billing")["paused"]
    assert site.group("billing")["lag"] == 2
    with site.client() as client, client.subscribe("line/#", group="billing") as messages:
        wait_until(lambda: site.group("billing")["consumers"] == 1, TIMEOUT_S)
        assert site.root.post("/messages", {"topic": "line/1", "payload": "3"}).status == 201
        assert [site.group("billing")[name] for name in ("lag", "in_flight")] == [3, 0]
        resumed = site.reader.post(f"/groups/billing/resume{OVER_LINE}")
        assert (resumed.status, resumed.json["paused"]) == (200, False)
        assert next(iter(messages)).payload == b"1"
    assert not site.group("billing")["paused"]
    document = site.root.get("/api/openapi.json").json["paths"]
    assert {"/api/v1/groups/{group}/pause", "/api/v1/groups/{group}/resume"} <= document.keys()


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_what_pauses_no_group(site: GroupSite, what: str) -> None:
    site.make_group("billing", "line/#")
    site.make_group("secret", "plan/#")
    over_plan = "?filter=plan/%23"
    for path, status, kind in (
        (f"/groups/billing/{what}", 400, "bad-parameter"),
        (f"/groups/billing/{what}?filter=", 400, "bad-parameter"),
        (f"/groups/billing/{what}{over_plan}", 404, "not-found"),
        (f"/groups/nobody/{what}{OVER_LINE}", 404, "not-found"),
        (f"/groups/{'x' * 256}/{what}{OVER_LINE}", 400, "bad-parameter"),
        (f"/groups/%00/{what}{OVER_LINE}", 404, "not-found"),
        (f"/groups/$ns:a:billing/{what}{OVER_LINE}", 404, "not-found"),
        (f"/groups/secret/{what}{over_plan}", 404, "not-found"),
    ):
        refused = site.reader.post(path)
        assert (refused.status, refused.kind) == (status, kind), path
    foreign = site.root.post(f"/groups/billing/{what}{OVER_LINE}", Origin="http://evil.example")
    assert (foreign.status, foreign.kind) == (403, "foreign-origin")
    nobody = WebClient(site.url).post(f"/groups/billing/{what}{OVER_LINE}")
    assert nobody.status == 401
    assert site.root.ask("GET", f"/groups/billing/{what}{OVER_LINE}").kind == "method-not-allowed"
    assert [each["group"] for each in site.reader.get("/groups").json["groups"]] == ["billing"]
    assert not any(each["paused"] for each in site.root.get("/groups").json["groups"])


def test_the_page_of_a_group_pauses_it(pages: ConsolePages, site: GroupSite) -> None:
    site.make_group("<b>billing", "line/#", "1")
    page = pages.open("/groups")
    expect(page.locator("tbody .tag")).to_have_count(0)
    page.get_by_role("link", name="<b>billing").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text("Paused at message 0 <b>billing")
    expect(page.locator("#paused")).to_contain_text("The group hands out nothing")
    assert site.group("<b>billing")["paused"]
    page.goto(f"{pages.url}/groups")
    expect(page.locator("tbody .tag")).to_have_text("paused")
    page.get_by_role("link", name="<b>billing").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#paused").get_by_role("button")).to_have_text("Pause")
    assert not site.group("<b>billing")["paused"]
    assert page.locator("main b").count() == 0
    pages.check()


def test_a_page_of_another_site_changes_no_group(pages: ConsolePages, site: GroupSite) -> None:
    """It has the cookie, and not the login's token."""
    site.make_group("billing", "line/#")
    page = pages.open("/groups")
    paths = ["/group/pause", "/group/resume"]
    statuses = page.evaluate(
        "(paths) => Promise.all(paths.map((path) => fetch(path, {method: 'POST', "
        "body: new URLSearchParams({name: 'billing', filter: 'line/#', at: '0', log_offset: '0'})})"
        ".then((answer) => answer.status)))",
        paths,
    )
    assert statuses == [403] * len(paths)
    assert not site.group("billing")["paused"]
    pages.check(refusals=len(paths))


@pytest.mark.parametrize("name", ["", "nobody", "x" * 300])
def test_pages_of_groups_that_are_not_there(pages: ConsolePages, name: str) -> None:
    page = pages.open(f"/group?name={quote(name)}&filter=line/%23")
    expect(page.locator(".problem")).to_be_visible()
    pages.check(refusals=1)
