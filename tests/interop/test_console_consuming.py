"""Groups that programs consume by HTTP: what becomes of messages, who may have them, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import count, islice
from typing import Any

import pytest

from penstock.sync import Client
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_api import RULES, Site
from tests.interop.test_console_process import passwords
from tests.support.console_process import API, WebClient, basic
from tests.support.http_group import HttpGroup, payloads
from tests.support.store_process import StoreProcess
from tests.support.stores import wait_until

TOKENS = {"wire.client_token": "c", "wire.operator_token": "o"}
OF_CONSOLE = {name.replace(".", "__"): token for name, token in TOKENS.items()}
numbers = count()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A store that asks nobody for a password, and a console that is a process of its own."""
    folder = tmp_path_factory.mktemp("consuming")
    store = StoreProcess(folder, settings=TOKENS)
    site = Site(folder, store, **OF_CONSOLE)
    yield site
    site.console.close()
    store.close()


@pytest.fixture
def group(site: Site) -> HttpGroup:
    """Over topics that no other test has."""
    name = f"g{next(numbers)}"
    return HttpGroup(site.client, name, f"{name}/#")


def publish(group: HttpGroup, *sent: str, **options: Any) -> None:
    topic = group.topic_filter.replace("#", "1")
    answer = group.client.post("/messages", [{"topic": topic, "payload": each} | options for each in sent])
    assert answer.status == 201, answer


def figures(group: HttpGroup) -> Any:
    return group.client.get(f"/groups/{group.name}", filter_=group.topic_filter).json


# --- what becomes of messages


def test_a_message_is_popped_and_acknowledged(site: Site, group: HttpGroup) -> None:
    assert group.pop() == []  # makes the group
    publish(group, "one", "two", headers={"unit": "C"}, key="k", tag="t")
    popped = group.pop()
    assert payloads(popped) == ["one", "two"]
    assert [each["attempt"] for each in popped] == [1, 1]
    message = popped[0]["message"]
    assert (message["topic"], message["key"], message["tag"], message["headers"]) == (
        group.topic_filter.replace("#", "1"),
        "k",
        "t",
        {"unit": "C"},
    )
    assert message["stored_at"].endswith("Z")
    assert all(len(each["handle"]) == 39 for each in popped)
    assert figures(group)["in_flight"] == 2
    group.ack(*popped)
    found = figures(group)
    assert (found["in_flight"], found["lag"], found["acked_offset"]) == (0, 0, 2)
    again = group.settle("ack", popped)
    assert (again.status, again.kind) == (410, "stale-handles")
    assert again.json["stale"] == [each["handle"] for each in popped]
    assert group.pop() == []


def test_a_group_begins_at_the_earliest_message_unless_it_says_where(site: Site) -> None:
    topic = "begun/1"
    publish(HttpGroup(site.client, "any", topic), "0", "1", "2")
    for start, wanted in ((None, ["0", "1", "2"]), ("earliest", ["0", "1", "2"]), ("@1", ["1", "2"]), ("now", [])):
        begun = HttpGroup(site.client, f"from-{start}", topic)
        assert payloads(begun.pop(start=start)) == wanted
    assert [each["message"]["queue_offset"] for each in HttpGroup(site.client, "b", topic).pop(most=2)] == [0, 1]
    lacking = HttpGroup(site.client, "late", "begun/+").ask("pop", start="earliest")
    assert (lacking.status, lacking.kind) == (409, "group-refused")
    assert "no queue has what was stored before" in lacking.json["detail"]
    wrong = HttpGroup(site.client, "late", "begun/+").ask("pop", start="someday")
    assert (wrong.status, wrong.kind) == (400, "bad-parameter")
    assert [each["group"] for each in site.client.get("/groups").json["groups"] if each["group"] == "late"] == []


def test_payloads_are_as_the_history_has_them(site: Site, group: HttpGroup) -> None:
    group.pop()
    answer = site.client.post("/messages", {"topic": group.topic_filter.replace("#", "1"), "payload_base64": "//4="})
    assert answer.status == 201
    (popped,) = group.pop()
    shown = site.client.get(f"/messages/{popped['message']['message_id']}").json
    assert popped["message"]["payload_base64"] == shown["payload_base64"] == "//4="
    assert "payload" not in popped["message"]


def test_a_retried_message_comes_again_after_its_time(site: Site, group: HttpGroup) -> None:
    group.pop()
    publish(group, "one")
    (first,) = group.pop()
    asked_s = time.monotonic()
    assert group.settle("retry", [first], after_s=1.5).status == 200
    (second,) = group.pop(wait_s=30)
    assert time.monotonic() - asked_s >= 1.4
    assert second["attempt"] == 2
    stale = group.settle("ack", [first, second])
    assert (stale.status, stale.json) == (207, {"settled": 1, "stale": [first["handle"]]})


def test_a_message_that_nobody_settles_comes_again_with_another_handle(site: Site, group: HttpGroup) -> None:
    group.pop()
    publish(group, "one")
    (first,) = group.pop(invisible_s=0.5)
    (second,) = group.pop(wait_s=30, invisible_s=300)
    assert (second["attempt"], payloads([second])) == (2, ["one"])
    assert first["handle"] != second["handle"]
    for what, more in (("ack", {}), ("retry", {}), ("extend", {"invisible_s": 5}), ("reject", {})):
        late = group.settle(what, [first], **more)
        assert (late.status, late.kind) == (410, "stale-handles"), what
        assert "pop again" in late.json["remedy"]
    group.ack(second)


def test_an_extended_message_stays_its_programs(site: Site, group: HttpGroup) -> None:
    group.pop()
    publish(group, "one")
    (popped,) = group.pop(invisible_s=1)
    until_s = time.monotonic() + 2.5
    while time.monotonic() < until_s:
        assert group.settle("extend", [popped], invisible_s=60).status == 200
        assert group.pop(wait_s=0.5) == []
    group.ack(popped)


def test_a_rejected_message_is_a_dead_letter_with_its_reason(site: Site, group: HttpGroup) -> None:
    group.pop()
    publish(group, "one")
    popped = group.pop()
    answer = group.settle("reject", popped, reason="no such customer")
    assert (answer.status, answer.json["settled"]) == (200, 1)
    wait_until(lambda: figures(group)["dead_letters"] == 1, TIMEOUT_S)
    (letter,) = site.client.get("/messages", filter_=f"$dead/{group.name}/{group.name}/1").json["messages"]
    assert (letter["payload"], letter["headers"]["penstock-reason"]) == ("one", "no such customer")
    assert figures(group)["lag"] == 0


def test_a_group_with_tags_has_messages_with_one_of_them(group: HttpGroup) -> None:
    fast = group
    assert fast.pop(tag="fast||express") == []
    publish(group, "slow", tag="slow")
    publish(group, "quick", tag="fast")
    popped = fast.pop(tag="express||fast")
    assert payloads(popped) == ["quick"]
    assert figures(fast)["tag"] == "fast||express"
    other = fast.ask("pop", tag="slow")
    assert (other.status, other.kind) == (409, "group-refused")
    assert "has the tag 'fast||express'" in other.json["detail"]
    assert fast.ask("pop", tag="||").kind == "bad-parameter"
    fast.ack(*popped)


@pytest.mark.catalogue("Q72")
def test_messages_with_a_higher_priority_are_popped_first(group: HttpGroup) -> None:
    assert group.pop(tag="alarm > *") == []
    publish(group, "1", "2")
    publish(group, "3", tag="alarm")
    assert payloads(group.pop()) == ["3", "1", "2"]


def test_it_shares_a_group_with_a_consumer_of_the_sdk(site: Site, group: HttpGroup) -> None:
    group.pop()
    publish(group, *map(str, range(40)))
    mine = group.pop(most=20)
    with (
        Client(site.store.url.replace("tcp://", "penstock://"), token="c") as client,
        client.subscribe(group.topic_filter, group=group.name) as messages,
    ):
        theirs = list(islice(messages, 20))
        for each in theirs:
            each.ack()
    assert sorted(payloads(mine) + [each.payload.decode() for each in theirs], key=int) == [*map(str, range(40))]
    group.ack(*mine)
    wait_until(lambda: figures(group)["lag"] == 0, TIMEOUT_S)


def test_an_ordered_group_deals_the_next_of_a_key_once_the_one_before_is_settled(site: Site, group: HttpGroup) -> None:
    with Client(site.store.url.replace("tcp://", "penstock://"), token="c") as client:
        ordered = client.subscribe(group.topic_filter, group=group.name, start="now", ordered=True)
        with ordered:
            pass
    for key in ("a", "b"):
        publish(group, f"{key}1", f"{key}2", key=key)
    first = group.pop(wait_s=10)
    while len(first) < 2:
        first += group.pop(wait_s=10)
    assert sorted(payloads(first)) == ["a1", "b1"]
    assert group.pop() == []
    (a1,) = (each for each in first if each["message"]["key"] == "a")
    group.ack(a1)
    (a2,) = group.pop(wait_s=10)
    assert payloads([a2]) == ["a2"]
    (b1,) = (each for each in first if each is not a1)
    assert group.settle("retry", [b1], after_s=0).status == 200
    (again,) = group.pop(wait_s=10)
    assert (payloads([again]), again["attempt"]) == (["b1"], 2)


# --- who may, and what is refused


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A store with users: alice may have line/# and plant/#, reader line/1 and line/2, root all."""
    folder = tmp_path_factory.mktemp("judged")
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    users = {
        "auth.password_file": passwords(folder, root="s3c", reader="s3c", alice="s3c"),
        "auth.permissions_file": rules,
    }
    store = StoreProcess(folder, settings={**TOKENS, **users})
    site = Site(folder, store, **OF_CONSOLE, console__max_pops=4, console__max_pops_per_user=2)
    yield site
    site.console.close()
    store.close()


def test_a_user_consumes_what_the_user_may_subscribe_to(judged: Site) -> None:
    alice, reader, root = (judged.user(name) for name in ("alice", "reader", "root"))
    own = HttpGroup(alice, "plans", "plant/#")
    assert own.pop() == []
    publish(own, "one", "two")
    (popped,) = own.pop(most=1)
    for what, more in (("pop", {}), ("ack", {"handles": [popped["handle"]]})):
        refused = HttpGroup(reader, "plans", "plant/#").ask(what, **more)
        assert (refused.status, refused.kind) == (403, "not-permitted" if what == "pop" else "foreign-handle")
    nobody = HttpGroup(judged.client, "plans", "plant/#").ask("pop")
    assert (nobody.status, nobody.kind) == (401, "not-admitted")
    theirs = HttpGroup(root, "plans", "plant/#")
    foreign = theirs.settle("ack", [popped])
    assert (foreign.status, foreign.kind) == (403, "foreign-handle")  # root may have the messages, and has not this one
    for other in (HttpGroup(alice, "other", "plant/#"), HttpGroup(alice, "plans", "plant/1")):
        assert other.settle("ack", [popped]).kind == "foreign-handle"
    origin = alice.post("/groups/plans/pop", {"filter": "plant/#"}, Origin="http://evil.example")
    assert (origin.status, origin.kind) == (403, "foreign-origin")
    assert payloads(theirs.pop()) == ["two"]
    own.ack(popped)


def test_a_login_needs_its_csrf_token(judged: Site) -> None:
    login = judged.client.post("/session", {"user": "alice", "password": "s3c"})
    assert login.status in (200, 201), login
    cookie = login.headers["set-cookie"].partition(";")[0]
    wanted = {"filter": "plant/#"}
    refused = judged.client.post("/groups/of-login/pop", wanted, Cookie=cookie)
    assert (refused.status, refused.kind) == (403, "csrf")
    token = {"X-CSRF-Token": login.json["csrf_token"]}
    assert judged.client.post("/groups/of-login/pop", wanted, Cookie=cookie, **token).status == 200


def test_a_group_that_is_not_there_is_not_made_by_a_handle(judged: Site) -> None:
    alice = judged.user("alice")
    dropped = HttpGroup(alice, "dropped", "plant/#")
    dropped.pop()
    publish(dropped, "one")
    popped = dropped.pop()
    wait_until(lambda: figures(dropped)["consumers"] == 0, TIMEOUT_S)  # some seconds after its last request
    answer = alice.ask("DELETE", "/groups/dropped?filter=plant/%23")
    assert answer.status == 204, answer
    gone = dropped.settle("ack", popped)
    assert (gone.status, gone.kind) == (404, "no-such-group")
    assert alice.get("/groups", name="dropped").json["groups"] == []


@pytest.mark.parametrize("what", ["pop", "ack", "retry", "extend", "reject"])
def test_what_no_request_is_is_refused(group: HttpGroup, what: str) -> None:
    fine: dict[str, Any] = {"filter": group.topic_filter}
    if what != "pop":
        fine |= {"handles": ["x" * 39]}
    if what == "extend":
        fine |= {"invisible_s": 5}
    path = f"/groups/{group.name}/{what}"
    wrong: list[Any] = [b"", b"{", b"[" * 100_000, b"null", b"\xff\xfe", [], 7, "pop", {}, fine | {"more": 1}]
    filters: list[Any] = ["", None, 5, [], "x" * 2_049, "a/#/b", "a\0b", "\ud800"]
    wrong += [fine | {"filter": each} for each in filters]
    if what == "pop":
        wrong += [fine | {"most": each} for each in (0, -1, 1_001, 1.5, True, "5", 2**70, None)]
        wrong += [fine | {"wait_s": each} for each in (-1, 31, 1e300, "5", True, float("nan"), float("inf"), None)]
        wrong += [fine | {"invisible_s": each} for each in (0, -1, 604_801, "5", float("nan"))]
        wrong += [
            fine | {"tag": each}
            for each in ("||", "a||", 5, "x" * 300, "||".join("abcdefghijklmnopqrstuvwxyz0123456789"))
        ]
        wrong += [fine | {"start": each} for each in ("", "someday", 5, "x" * 65, "2026-99-99")]
    else:
        handles: list[Any] = [[], None, "x", [""], [5], ["x" * 65], 1_001 * ["x" * 39]]
        wrong += [fine | {"handles": each} for each in handles]
        wrong += [fine]  # no handle
    if what == "retry":
        wrong += [fine | {"after_s": each} for each in (-1, 604_801, "5", float("nan"))]
    if what == "extend":
        wrong += [fine | {"invisible_s": each} for each in (0, -1, 604_801, None)]
    if what == "reject":
        wrong += [fine | {"reason": each} for each in ("", "x" * 1_025, None, 5)]
    for body in wrong:
        refused = group.client.post(path, body)
        assert refused.status in (400, 415, 422), (body if not isinstance(body, bytes) else body[:20], refused)
        assert refused.kind
    assert group.client.post(f"/groups/{'x' * 256}/{what}", fine).status == 400
    for name in ("a+b", "a%23b", "%00", "a%2Fb"):
        assert group.client.post(f"/groups/{name}/{what}", fine).status in (400, 404)
    assert group.client.post(f"{path}?filter=x", fine).kind == "unknown-parameter"
    assert group.client.ask("GET", path).kind == "method-not-allowed"
    assert group.client.get("/groups", name=group.name).json["groups"] == []
    assert group.pop() == []  # the connection to the store is still there


def test_a_request_that_waits_gets_the_first_message(group: HttpGroup) -> None:
    group.pop()
    with waiting(group, most=5, wait_s=30) as answers:
        wait_until(lambda: pops(group)["open"] == 1, TIMEOUT_S)
        publish(group, "one")
        ((popped,),) = answers()
    assert payloads([popped]) == ["one"]
    group.ack(popped)


def test_one_user_leaves_room_for_another(judged: Site) -> None:
    alice, reader, root = (HttpGroup(judged.user(name), f"of-{name}", "line/1") for name in ("alice", "reader", "root"))
    for each in (alice, reader, root):
        assert each.pop(start="now") == []
    with waiting(alice, times=2, wait_s=30) as of_alice, waiting(reader, times=2, wait_s=30) as of_reader:
        wait_until(lambda: pops(root)["open"] == 4, TIMEOUT_S)
        too_many = alice.ask("pop")
        assert (too_many.status, too_many.kind) == (429, "too-many-pops-per-user")
        assert too_many.headers["retry-after"] == "1"
        full = root.ask("pop")
        assert (full.status, full.kind) == (503, "too-many-pops")
        publish(alice, "1", "2")
        for answers in (of_alice, of_reader):
            assert sorted(payloads(each for answer in answers() for each in answer)) == ["1", "2"]
    assert root.ask("pop").status == 200


def test_what_a_program_leaves_behind_goes_to_others_at_once(group: HttpGroup) -> None:
    """It was handed nothing that others would have to wait for."""
    group.pop()
    left = []
    for _ in range(20):
        connection = HTTPConnection(group.client.address, timeout=TIMEOUT_S)
        body = json.dumps({"filter": group.topic_filter, "wait_s": 30, "invisible_s": 3_600})
        connection.request("POST", f"{API}/groups/{group.name}/pop", body, {"Content-Type": "application/json"})
        left.append(connection)
    wait_until(lambda: pops(group)["open"] == 20, TIMEOUT_S)
    for connection in left:
        connection.close()
    wait_until(lambda: pops(group)["open"] == 0, TIMEOUT_S)
    publish(group, *map(str, range(50)))
    found: list[Any] = []
    while len(found) < 50:
        popped = group.pop(most=50, wait_s=10)
        assert popped
        found += popped
    assert {each["attempt"] for each in found} == {1}
    group.ack(*found)
    wait_until(lambda: figures(group)["lag"] == 0, TIMEOUT_S)


def test_an_answer_has_a_bound_and_the_rest_is_not_lost(group: HttpGroup) -> None:
    """Compressed they are small, and as they were published larger than an answer."""
    group.pop()
    text = "0123456789" * 100_000
    for number in range(7):
        answer = group.client.post("/messages", {"topic": f"{group.name}/1", "payload": f"{number}{text}"})
        assert answer.status == 201
    counts: list[int] = []
    found: list[Any] = []
    while len(found) < 7:
        popped = group.pop(most=7, wait_s=10)
        counts.append(len(popped))
        found += popped
    assert counts == [4, 3]
    assert [each[:1] for each in payloads(found)] == [*"0123456"]
    assert {each["attempt"] for each in found} == {1}
    group.ack(*found)


def pops(group: HttpGroup) -> Any:
    root = WebClient(f"http://{group.client.address}", Authorization=basic("root", "s3c"))
    found = root.get("/server").json["console"]["pops"]
    return {"open": 0} | found


@contextmanager
def waiting(group: HttpGroup, times: int = 1, **wanted: Any) -> Iterator[Callable[[], list[list[Any]]]]:
    """Requests that wait; what they get."""
    with ThreadPoolExecutor(times) as threads:
        found = [threads.submit(group.pop, **({"most": 1} | wanted)) for _ in range(times)]
        yield lambda: [each.result(TIMEOUT_S) for each in found]
