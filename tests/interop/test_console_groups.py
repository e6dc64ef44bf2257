"""Groups at the console, by its HTTP API and its pages: they are paused, and their dead letters are settled."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from penstock.sync import Client
from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_process import ANYWHERE, passwords
from tests.support.audit_lines import audit_lines
from tests.support.console_browser import ConsoleBrowsers, ConsolePages
from tests.support.console_process import WebClient, console_url
from tests.support.group_site import GroupSite
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


@pytest.fixture
def site(penstock_server: ServerFactory, tmp_path: Path) -> GroupSite:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    file = passwords(tmp_path, root="s3c", reader="s3c")
    users = {"auth.password_file": file, "auth.permissions_file": rules}
    return GroupSite(penstock_server(settings={**ANYWHERE, **users}, flush="async"))


def logged_in(browsers: ConsoleBrowsers, site: GroupSite, user: str) -> ConsolePages:
    window = browsers.window(site.url)
    page = window.open("/groups")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password or token").fill("s3c")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("Consumer groups")
    page.close()
    return window


@pytest.fixture
def pages(browsers: ConsoleBrowsers, site: GroupSite) -> Iterator[ConsolePages]:
    """root is logged in."""
    window = logged_in(browsers, site, "root")
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
def test_invalid_pauses_of_groups_are_refused(site: GroupSite, what: str) -> None:
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
    paths = ["/group/pause", "/group/resume", "/letters/settle", "/letters/settle-all"]
    statuses = page.evaluate(
        "(paths) => Promise.all(paths.map((path) => fetch(path, {method: 'POST', "
        "body: new URLSearchParams({name: 'billing', filter: 'line/#', at: '0', log_offset: '0'})})"
        ".then((answer) => answer.status)))",
        paths,
    )
    assert statuses == [403] * len(paths)
    assert not site.group("billing")["paused"]
    pages.check(refusals=len(paths))


# --- moving


def move(user: WebClient, to: str, **more: Any) -> Any:
    answer = user.post(f"/groups/billing/move{OVER_LINE}", {"to": to, **more})
    assert answer.status == 200, answer
    return answer.json


def test_a_move_says_before_it_is_made_what_it_skips_and_repeats(site: GroupSite) -> None:
    site.make_group("billing", "line/#", *map(str, range(10)))
    with site.client() as client, client.subscribe("line/#", group="billing") as messages:
        for message in islice(messages, 4):
            message.ack()
    wait_until(lambda: site.group("billing")["lag"] == 6, TIMEOUT_S)
    for to, queue_offset, skipped, repeated in (
        ("latest", 10, 6, 0),
        ("now", 10, 6, 0),
        ("7", 7, 3, 0),
        ("@4", 4, 0, 0),
        ("1", 1, 0, 3),
        ("earliest", 0, 0, 4),
        ("-1h", 0, 0, 4),
        ("1000000", 10, 6, 0),
    ):
        said = {"queue_offset": queue_offset, "skipped": skipped, "repeated": repeated, "exact": True, "moved": False}
        assert move(site.reader, to, dry_run=True) == said
    assert site.group("billing")["acked_offset"] == 4
    assert move(site.reader, "7") == {"queue_offset": 7, "skipped": 3, "repeated": 0, "exact": True, "moved": True}
    assert site.group("billing")["acked_offset"] == 7


def test_invalid_moves_of_groups_are_refused(site: GroupSite) -> None:
    site.make_group("billing", "line/#", "1")
    site.make_group("secret", "plan/#", "1")
    for path, body, status, kind in (
        (f"/groups/billing/move{OVER_LINE}", {"to": "banana"}, 422, "no-such-place"),
        (f"/groups/billing/move{OVER_LINE}", {"to": ""}, 422, "no-such-place"),
        (f"/groups/billing/move{OVER_LINE}", {}, 400, "bad-parameter"),
        (f"/groups/nobody/move{OVER_LINE}", {"to": "latest"}, 404, "not-found"),
        ("/groups/secret/move?filter=plan/%23", {"to": "latest", "dry_run": True}, 404, "not-found"),
    ):
        refused = site.reader.post(path, body)
        assert (refused.status, refused.kind) == (status, kind), (path, body)
    assert [site.group(name)["lag"] for name in ("billing", "secret")] == [1, 1]


def test_the_page_of_a_group_asks_before_it_moves(pages: ConsolePages, site: GroupSite) -> None:
    site.make_group("<b>billing", "line/#", *map(str, range(1_200)))
    page = pages.open("/group?name=%3Cb%3Ebilling&filter=line/%23")
    said = page.get_by_role("status")
    page.get_by_label("Move to").fill("latest")
    page.get_by_role("button", name="Move…").click()
    expect(said).to_contain_text("Move <b>billing to message 1,200?")
    expect(said).to_contain_text("It skips 1,200 messages that nobody has handled.")
    assert site.group("<b>billing")["lag"] == 1_200
    page.get_by_role("button", name="Skip them and move").click()
    expect(said).to_contain_text("Moved to message 1200 <b>billing")
    lag = page.locator("#group-figures > div", has_text="Lag").locator("dd")
    expect(lag).to_have_text("0")
    assert site.group("<b>billing")["lag"] == 0
    page.get_by_label("Move to").fill("1000")
    page.get_by_role("button", name="Move…").click()
    expect(said).to_contain_text("It repeats 200 messages that are done with.")
    page.get_by_role("link", name="Do not move").click()
    expect(lag).to_have_text("0")
    page.get_by_text("Drop the group…").click()
    page.get_by_role("button", name="Drop", exact=True).click()
    expect(said).to_contain_text("Dropped <b>billing")
    expect(page.locator("#group-actions")).to_contain_text("The group is gone.")
    assert page.locator("main b").count() == 0
    pages.check()


# --- what is wrong


def test_the_overview_tells_which_groups_need_somebody(
    browsers: ConsoleBrowsers, penstock_server: ServerFactory
) -> None:
    server = penstock_server(settings={**ANYWHERE, "console.stuck_s": 2}, flush="async")
    window = browsers.window(console_url(server))
    page = window.open("/")
    expect(page.get_by_text("Nothing is wrong.")).to_be_visible()
    with (
        Client(f"unix://{server.data.absolute()}/console.sock") as client,
        client.subscribe("line/#", group="stuck", start="now") as held,
        client.subscribe("line/#", group="billing", start="now") as given_up,
    ):
        client.publish_many([("line/1", "1"), ("line/1", "2")])
        assert next(iter(held)).payload == b"1"  # and says nothing more
        assert next(iter(given_up)).reject("no use")
        wrong = page.get_by_role("region", name="What is wrong")
        expect(wrong).to_contain_text("group stuck over line/# stands still: nothing was acknowledged for")
        expect(wrong).to_contain_text("group billing gave up 1 messages in the last")
        assert WebClient(window.url).post(f"/groups/stuck/pause{OVER_LINE}").status == 200
        expect(wrong).to_contain_text("group stuck over line/# is paused, with a lag of 2")
        wrong.locator("p", has_text="is paused").get_by_role("link").click()
        expect(page.locator("h1")).to_contain_text("stuck over line/#")
    window.check()
    window.context.close()


# --- dead letters


def chosen(*letters: Any) -> dict[str, Any]:
    return {"letters": [{name: each[name] for name in ("queue_offset", "log_offset")} for each in letters]}


def test_dead_letters_are_listed_and_looked_at(site: GroupSite) -> None:
    site.die("billing", "0", "1", "2", "3", "4")
    site.die("other", "x")
    found = site.letters("billing")
    assert [each["message"]["payload"] for each in found] == ["0", "1", "2", "3", "4"]
    third = found[2]
    assert (third["topic"], third["reason"], third["deliveries"]) == ("line/2", "no use: 2", 1)
    assert third["topic_filter"] == "line/#"
    one = site.root.get(f"/groups/billing/dead-letters/{third['queue_offset']}")
    assert (one.status, one.json) == (200, third)
    read = site.root.get(f"/messages/{third['message_id']}")
    assert (read.status, read.json["topic"]) == (200, "$dead/billing/line/2")
    assert site.letters("nobody") == []
    document = site.root.get("/api/openapi.json").json["paths"]
    assert {f"/api/v1/groups/{{group}}/dead-letters{end}" for end in ("", "/publish", "/drop")} <= document.keys()


def test_some_dead_letters_are_published_again_and_others_dropped(site: GroupSite) -> None:
    site.die("billing", "0", "1", "2", "3")
    found = site.letters("billing")
    again = site.root.post("/groups/billing/dead-letters/publish", chosen(found[3], found[1]))
    assert (again.status, again.json) == (200, {"settled": 2, "gone": 0, "left": [], "next": None})
    repeated = site.root.post("/groups/billing/dead-letters/publish", chosen(found[3], found[1]))
    assert repeated.json == {"settled": 0, "gone": 2, "left": [], "next": None}
    dropped = site.root.post("/groups/billing/dead-letters/drop", chosen(found[0], found[1]))
    assert dropped.json == {"settled": 1, "gone": 1, "left": [], "next": None}
    assert [each["message"]["payload"] for each in site.letters("billing")] == ["2"]
    assert sorted(site.published()) == ["0", "1", "1", "2", "3", "3"]
    at = found[3]["queue_offset"]
    assert site.root.get(f"/groups/billing/dead-letters/{at}").kind == "no-such-dead-letter"
    wait_until(lambda: len(audit_lines(site.server, "operator")) == 3)
    said = [line["reason"] for line in audit_lines(site.server, "operator")]
    assert all(line.startswith("root by the console from 127.0.0.1 ") for line in said)
    assert said[2].endswith(f"dropped dead letter {found[0]['queue_offset']} of group billing")


def settle_all(site: GroupSite, what: str) -> list[int]:
    """How many each step settled."""
    steps: list[int] = []
    after: str | None = None
    while not steps or after is not None:
        body = {"all": True} if after is None else {"all": True, "after": after}
        answer = site.root.post(f"/groups/billing/dead-letters/{what}", body)
        assert answer.status == 200, answer
        steps.append(answer.json["settled"])
        after = answer.json["next"]
    return steps


def test_all_dead_letters_are_published_again_in_steps(site: GroupSite) -> None:
    """A consumer that rejects them again does not make it endless: letters that are new are left."""
    payloads = [f"{number}" for number in range(700)]
    site.die("billing", *payloads)
    with site.client() as client, client.subscribe("line/#", group="billing") as members:
        rejected = Thread(target=lambda: [each.reject("again", wait=False) for each in islice(members, len(payloads))])
        rejected.start()
        steps = settle_all(site, "publish")
        rejected.join(TIMEOUT_S)
    assert sum(steps) == 700
    assert 0 < max(steps) <= 550
    wait_until(lambda: site.group("billing")["dead_letters"] == 1_400, TIMEOUT_S)
    assert sorted(site.published()) == sorted(2 * payloads)
    assert sum(settle_all(site, "drop")) == 700
    assert site.letters("billing") == []
    assert sorted(site.published()) == sorted(2 * payloads)


def test_a_dead_letter_that_is_larger_than_an_answer_is_settled(site: GroupSite) -> None:
    payload = b64encode(Random(7).randbytes(200_000)).decode()  # compressed it has 200,000 bytes
    site.die("billing", payload)
    (letter,) = site.letters("billing")
    assert letter["message"] is None
    assert letter["size_bytes"] > 200_000
    assert site.root.get(f"/messages/{letter['message_id']}").json["payload"] == payload
    assert site.root.post("/groups/billing/dead-letters/publish", chosen(letter)).json["settled"] == 1
    assert site.published() == 2 * [payload]


def test_a_dead_letter_that_cannot_be_published_stays_open(site: GroupSite) -> None:
    """It has expired."""
    with site.client() as client, client.subscribe("line/#", group="billing", start="now") as members:
        client.publish("line/1", "short-lived", expires_after=timedelta(seconds=5))
        next(iter(members)).reject()
    (letter,) = site.letters("billing")
    expired_s = time.time() + 6
    wait_until(lambda: time.time() > expired_s)
    answer = site.root.post("/groups/billing/dead-letters/publish", {"all": True}).json
    assert (answer["settled"], answer["next"]) == (0, None)
    assert [each["queue_offset"] for each in answer["left"]] == [letter["queue_offset"]]
    assert "the message has expired" in answer["left"][0]["why"]
    assert len(site.letters("billing")) == 1


@pytest.mark.parametrize("what", ["publish", "drop"])
def test_invalid_settlements_of_dead_letters_are_refused(site: GroupSite, what: str) -> None:
    site.die("billing", "1")
    site.die("other", "2")
    (letter,), (other,) = site.letters("billing"), site.letters("other")
    path = f"/groups/billing/dead-letters/{what}"
    at = chosen(letter)
    for refused, status, kind in (
        (site.reader.get("/groups/billing/dead-letters"), 403, "not-permitted"),
        (site.reader.get(f"/groups/billing/dead-letters/{letter['queue_offset']}"), 403, "not-permitted"),
        (site.reader.post(path, at), 403, "not-permitted"),
        (site.reader.post(path, {"all": True}), 403, "not-permitted"),
        (WebClient(site.url).post(path, at), 401, "not-admitted"),
        (site.root.post(path, at, Origin="http://evil.example"), 403, "foreign-origin"),
        (site.root.post(path, {}), 400, "bad-parameter"),
        (site.root.post(path, at | {"all": True}), 400, "bad-parameter"),
        (site.root.post(path, at | {"after": "x"}), 400, "bad-parameter"),
        (site.root.post(path, {"letters": []}), 400, "bad-parameter"),
        (site.root.post(path, {"letters": 1_001 * at["letters"]}), 400, "bad-parameter"),
        (site.root.post(path, {"letters": [{"queue_offset": -1, "log_offset": 0}]}), 400, "bad-parameter"),
        (site.root.post(path, {"all": True, "after": "x"}), 400, "bad-cursor"),
        (site.root.get(path), 405, "method-not-allowed"),
    ):
        assert (refused.status, refused.kind) == (status, kind)
    assert site.root.post(path, chosen(other)).json["gone"] == 1  # of another group
    wrong = {"letters": [{"queue_offset": letter["queue_offset"], "log_offset": letter["log_offset"] + 8}]}
    assert site.root.post(path, wrong).json["gone"] == 1
    assert len(site.letters("billing")) == len(site.letters("other")) == 1
    assert sorted(site.published()) == ["1", "2"]


def test_pages_settle_dead_letters(pages: ConsolePages, site: GroupSite) -> None:
    site.die("<b>billing", "zero", "one", '{"n": 2}', "<i>three", "four")
    page = pages.open("/groups")
    page.locator("tbody tr", has_text="<b>billing").get_by_role("link", name="5", exact=True).click()
    rows = page.locator("#letters tbody tr")
    expect(rows).to_have_count(5)
    expect(rows.nth(1)).to_contain_text("line/1")
    expect(rows.nth(1)).to_contain_text("no use: one")
    page.get_by_role("link", name='{"n": 2}').click()
    expect(page.locator(".payload-shown")).to_contain_text("n: 2")
    page.get_by_role("link", name="Bytes").click()
    expect(page.locator(".payload-shown")).to_contain_text("000000")
    page.get_by_role("button", name="Publish again").click()
    expect(page.get_by_role("status")).to_contain_text("Published again 1.")
    expect(page.locator("#letters")).to_contain_text("It is settled.")
    page.get_by_role("link", name="The others").click()
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="Drop the chosen").click()
    expect(page.get_by_role("status")).to_contain_text("no dead letter is chosen")
    rows.nth(0).get_by_role("checkbox").check()
    rows.nth(1).get_by_role("checkbox").check()
    page.get_by_role("button", name="Drop the chosen").click()
    expect(page.get_by_role("status")).to_contain_text("Dropped 2.")
    expect(rows).to_have_count(2)
    page.get_by_role("checkbox", name="Choose all of this page").check()
    page.get_by_role("button", name="Publish the chosen again").click()
    expect(page.get_by_role("status")).to_contain_text("Published again 2.")
    expect(page.locator("#letters")).to_contain_text("No dead letter is open")
    assert sorted(site.published()) == sorted(["zero", "one", *2 * ['{"n": 2}', "<i>three", "four"]])
    assert page.locator("main b, main i").count() == 0
    pages.check(refusals=1)


def test_a_page_publishes_all_dead_letters_again(pages: ConsolePages, site: GroupSite) -> None:
    payloads = [f"{number}" for number in range(700)]
    site.die("billing", *payloads)
    page = pages.open("/letters?name=billing")
    expect(page.locator("#letters caption")).to_have_text("50 of more, oldest first")
    page.get_by_text("Publish all again…").click()
    page.get_by_role("button", name="Publish all again").click()
    expect(page.get_by_role("status")).to_contain_text("Published again 700.", timeout=60_000)
    expect(page.locator("#letters")).to_contain_text("No dead letter is open")
    assert sorted(site.published()) == sorted(2 * payloads)
    pages.check()


def test_pages_of_dead_letters_are_for_admins(browsers: ConsoleBrowsers, site: GroupSite) -> None:
    site.die("billing", "1")
    (letter,) = site.letters("billing")
    window = logged_in(browsers, site, "reader")
    for path in ("/letters?name=billing", f"/letter?name=billing&at={letter['queue_offset']}"):
        expect(window.open(path).locator(".problem")).to_contain_text("may not see or touch")
    window.check(refusals=2)
    window.context.close()
    assert len(site.letters("billing")) == 1


@pytest.mark.parametrize("name", ["", "nobody", "x" * 300])
def test_pages_of_groups_that_are_not_there(pages: ConsolePages, name: str) -> None:
    page = pages.open(f"/group?name={quote(name)}&filter=line/%23")
    expect(page.locator(".problem")).to_be_visible()
    pages.check(refusals=1)
