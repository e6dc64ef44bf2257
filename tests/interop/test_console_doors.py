"""Failed logins and bans at the console: the store counts them at the browser's address, in the table of all doors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ServerFactory
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_process import ANYWHERE, passwords
from tests.interop.test_doors import TOKENS, Doors
from tests.support.console_process import ConsoleProcess, WebClient, basic, console_url
from tests.support.mqtt_packet_client import Device
from tests.support.stores import wait_until

HERE, THERE = "203.0.113.7", "198.51.100.8"
STORE: dict[str, Any] = {
    "auth__failure_window_s": 6_000,
    "auth__limit_loopback": True,
    "auth__max_failures_of_user": 0,
    "auth__ban_failures": 0,
}


class Site(Doors):
    """A store with a console behind a proxy, so that browsers come from any address."""

    def __init__(self, folder: Path, is_operator: bool = True, **settings: Any) -> None:
        super().__init__(folder, **settings)
        tokens = {"wire.client_token": TOKENS["client"]}
        if is_operator:
            tokens["wire.operator_token"] = TOKENS["operator"]
        self.console = ConsoleProcess(folder, self.store.url, {**tokens, "console.proxies": "127.0.0.1"})

    def browser(self, address: str = HERE, user: str = "bob", password: str = "s3c") -> WebClient:
        return self.console.client(Authorization=basic(user, password), X_Forwarded_For=address)

    def log_in(self, address: str, user: str = "bob") -> WebClient:
        """A browser with a cookie."""
        said = {"user": user, "password": "s3c"}
        begun = self.console.client(X_Forwarded_For=address).post("/session", said)
        assert begun.status == 201, begun
        return self.console.client(Cookie=begun.headers["set-cookie"].partition(";")[0], X_Forwarded_For=address)

    def close(self) -> None:
        self.console.close()
        super().close()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[list[Site]]:
    started: list[Site] = []
    yield started
    for each in started:
        each.close()


@pytest.fixture
def site(tmp_path: Path, sites: list[Site]) -> Site:
    sites.append(Site(tmp_path, **STORE))
    return sites[-1]


def test_guesses_at_the_same_time_do_not_get_through_the_limit(site: Site) -> None:
    def guess(number: int) -> int:
        return site.browser(password=f"wrong-{number}").get("/session").status

    with ThreadPoolExecutor(60) as threads:
        found = Counter(threads.map(guess, range(300)))
    assert found.keys() <= {401, 429, 503}, found
    assert found[401] <= 10, found
    while site.browser(password="wrong").get("/session").status == 401:  # what had no place did not count
        found[401] += 1
    assert found[401] == 10
    late = site.browser().get("/session")
    assert (late.status, late.kind) == (429, "too-many-failed-logins")
    assert 0 < int(late.headers["retry-after"]) <= 600
    assert site.browser(THERE).get("/session").status == 200
    assert site.browser(user="root").get("/session").status == 200
    site.client()  # from the console's own address
    wait_until(lambda: bool(site.audit("peer_refused", user="bob", address=HERE)), TIMEOUT_S)
    assert not site.audit("peer_refused", user="bob", address="127.0.0.1")


def test_browsers_that_fail_do_not_lock_out_others_nor_the_console(tmp_path: Path, sites: list[Site]) -> None:
    site = Site(tmp_path, **{**STORE, "auth__ban_failures": 12})
    sites.append(site)
    for address in ("203.0.113.1", "203.0.113.2", "203.0.113.3"):
        for number in range(12):
            assert site.browser(address, password=f"wrong-{number}").get("/session").status in (401, 429)
        banned = site.browser(address, "root").get("/session")
        assert (banned.status, banned.kind) == (403, "banned")
    wait_until(lambda: len(site.audit("banned")) == 3, TIMEOUT_S)
    assert {line["address"] for line in site.audit("banned")} == {f"203.0.113.{number}" for number in (1, 2, 3)}
    assert site.browser("203.0.113.4").get("/session").status == 200
    site.client()


@pytest.mark.parametrize("ban", [("user", "bob"), ("address", HERE), ("address", "203.0.113.0/24")])
def test_a_ban_holds_over_http_and_ends_streams_and_sessions(site: Site, ban: tuple[str, str]) -> None:
    here, there, root = site.log_in(HERE), site.browser(THERE), site.browser(THERE, "root")
    for client in (here, there, root):
        assert client.get("/session").status == 200
    with here.events("/messages?filter=line/%23") as events:
        site.ban(*ban)
        wait_until(lambda: here.get("/session").status == 403, TIMEOUT_S)
        assert site.browser().get("/messages", filter_="line/#").kind == "banned"
        list(events)  # it ends
    assert there.get("/session").status == (403 if ban[0] == "user" else 200)
    assert root.get("/session").status == 200
    wait_until(lambda: bool(site.audit("cut_off", user="bob", address=HERE)), TIMEOUT_S)
    site.lift(*ban)
    assert here.get("/session").status == 401  # the session is over
    assert site.browser().get("/session").status == 200


def test_a_console_that_is_no_operator_cannot_speak_for_others_and_bans_hold_all_the_same(
    tmp_path: Path, sites: list[Site]
) -> None:
    site = Site(tmp_path, is_operator=False, auth__failure_window_s=6_000)
    sites.append(site)
    site.ban("address", HERE)
    assert site.browser().get("/session").kind == "banned"
    assert site.browser(THERE).get("/session").status == 200
    assert site.browser(THERE, password="wrong").get("/session").status == 401
    wait_until(lambda: bool(site.audit("peer_refused", user="bob", address="127.0.0.1")), TIMEOUT_S)


def test_a_banned_address_is_refused_where_no_users_are_judged(tmp_path: Path, sites: list[Site]) -> None:
    site = Site(tmp_path, with_users=False)
    sites.append(site)
    here, there = (site.console.client(X_Forwarded_For=address) for address in (HERE, THERE))
    assert here.get("/topics").status == 200
    site.ban("address", HERE)
    wait_until(lambda: here.get("/topics").status == 403, TIMEOUT_S)
    assert there.get("/topics").status == 200


def test_mqtt_and_the_console_count_in_one_table(penstock_server: ServerFactory, tmp_path: Path) -> None:
    users = {"auth.password_file": passwords(tmp_path, root="s3c", bob="s3c"), "auth.failure_window_s": 6_000}
    server = penstock_server(settings={**ANYWHERE, **users}, flush="async")
    bob, root = (WebClient(console_url(server), Authorization=basic(name, "s3c")) for name in ("bob", "root"))
    for number in range(10):
        Device(server.port, "d").connect("bob", f"wrong-{number}")
    assert bob.get("/session").kind == "too-many-failed-logins"
    assert root.get("/session").status == 200
    for number in range(10):
        wrong = WebClient(console_url(server), Authorization=basic("ann", f"wrong-{number}"))
        assert wrong.get("/session").status == 401
    late = Device(server.port, "d").connect("ann", "another")
    assert late.reason_code is ReasonCode.CONNECTION_RATE_EXCEEDED
