"""A provider of OpenID Connect that lies, and browsers that bring what they should not: nobody gets in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.conftest import ServerFactory, SharedServers
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_process import ANYWHERE, passwords
from tests.support.audit_lines import audit_lines
from tests.support.console_process import WebClient, console_url
from tests.support.lying_provider import CLIENT, LyingProvider, lying_provider, new_key
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

TOKENS = (
    *("wrong iss", "wrong aud", "a list of aud", "wrong azp", "wrong nonce", "expired", "exp is text"),
    *("exp is endless", "made in the future", "not yet", "wrong at_hash", "sub is a list", "sub is empty"),
    *(f"without {name}" for name in ("iss", "sub", "aud", "exp", "iat", "nonce")),
    *("alg none", "alg NonE without a signature", "HS256 by the public key", "a shared secret as its key"),
    *("HS256 by the client's secret", "unknown kid", "foreign key under a known kid", "its key in the header"),
    *("changed claims", "a very long token", "no ID token"),
)
ANSWERS = tuple(f"{what} token" for what in ("huge", "no JSON of", "status of", "redirect of"))
METADATA = (
    *("huge metadata", "no JSON of metadata", "status of metadata", "redirect of metadata"),
    *("another issuer in the metadata", "script", "file", "user"),
)


class Came(NamedTuple):
    status: int
    location: str
    cookies: dict[str, str]
    text: str


class Browser:
    """Follows no redirect by itself."""

    def __init__(self, url: str, provider: LyingProvider) -> None:
        self.address = urlsplit(url).netloc
        self.url = url
        self.provider = provider
        self.cookies: dict[str, str] = {}

    def get(self, path: str) -> Came:
        connection = HTTPConnection(self.address, timeout=TIMEOUT_S)
        try:
            cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        pairs = (each.partition(";")[0].partition("=") for each in answer.headers.get_all("Set-Cookie", []))
        came = Came(answer.status, answer.headers.get("Location", ""), {a: b.strip('"') for a, _, b in pairs}, text)
        self.cookies = {name: value for name, value in (self.cookies | came.cookies).items() if value}
        return came

    def begin(self, next_page: str = "/topics") -> dict[str, str]:
        """Goes to the provider; what it is asked."""
        came = self.get(f"/login/oidc?{urlencode({'next': next_page})}")
        assert came.status == 303, came
        assert came.location.startswith(f"{self.provider.url}/authorize?")
        asked = {name: values[0] for name, values in parse_qs(urlsplit(came.location).query).items()}
        self.provider.nonce = asked["nonce"]
        return asked

    def come_back(self, **answer: str) -> Came:
        return self.get(f"/login/oidc/callback?{urlencode(answer)}")

    def log_in(self, next_page: str = "/topics") -> Came:
        return self.come_back(state=self.begin(next_page)["state"], code="c0de")

    @property
    def is_in(self) -> bool:
        cookie = self.cookies.get("penstock_session", "")
        client = WebClient(self.url, Cookie=f"penstock_session={cookie}")
        return client.get("/session").status == 200


@pytest.fixture(scope="module")
def provider() -> Iterator[LyingProvider]:
    with lying_provider() as found:
        yield found


@pytest.fixture(autouse=True)
def honest(provider: LyingProvider) -> Iterator[None]:
    provider.lie, provider.user = "", "alice"
    yield
    provider.lie = ""


@pytest.fixture(scope="module")
def settings(provider: LyingProvider, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return {
        **ANYWHERE,
        "console.oidc_issuer": provider.url,
        "console.oidc_client_id": CLIENT,
        "auth.jwt_keys_url": f"{provider.url}/jwks",
        "auth.jwt_issuer": provider.url,
        "auth.jwt_audience": CLIENT,
        "auth.jwt_keys_url_prefix": "sso:",
        "auth.password_file": passwords(tmp_path_factory.mktemp("users"), root="s3c"),
    }


@pytest.fixture
def make(settings: dict[str, object], penstock_server: ServerFactory) -> Callable[..., PenstockServer]:
    def made(**more: object) -> PenstockServer:
        given = {name.replace("__", "."): value for name, value in more.items()}
        return penstock_server(settings={**settings, **given}, flush="async")

    return made


@pytest.fixture
def server(settings: dict[str, object], shared_server: SharedServers) -> PenstockServer:
    return shared_server(settings=settings, flush="async")


@pytest.fixture
def browse(server: PenstockServer, provider: LyingProvider) -> Callable[[], Browser]:
    url = console_url(server)
    return lambda: Browser(url, provider)


@pytest.fixture
def browse_anew(make: Callable[..., PenstockServer], provider: LyingProvider) -> Callable[[], Browser]:
    """At a server and a console that know nothing of the provider yet, and whose knowledge no other test meets."""
    url = console_url(make())
    return lambda: Browser(url, provider)


def test_without_a_lie_the_user_is_in(browse: Callable[[], Browser], provider: LyingProvider) -> None:
    """What the console makes up for it is long, and another one each time."""
    browser = browse()
    asked = browser.begin()
    assert asked["response_type"] == "code"
    assert asked["code_challenge_method"] == "S256"
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 43
    came = browser.come_back(state=asked["state"], code="c0de")
    assert came.status == 200
    assert "url=/topics" in came.text
    assert browser.is_in
    (sent,) = provider.codes[-1:]
    assert sent["code"] == ["c0de"]
    assert len(sent["code_verifier"][0]) >= 43
    others = browse().begin()
    assert not {asked[name] for name in ("state", "nonce", "code_challenge")} & set(others.values())


def test_tokens_that_lie(browse: Callable[[], Browser], provider: LyingProvider) -> None:
    """And other answers to a code; the honest one gets in all the time."""
    for lie in (*TOKENS, *ANSWERS):
        browser = browse()
        provider.lie = lie
        came = browser.log_in()
        assert came.status in (401, 403, 502), (lie, came)
        assert "penstock_session" not in browser.cookies, lie
        assert not browser.is_in
        assert 'role="alert"' in came.text or "problem" in came.text
        provider.lie = ""
        assert browse().log_in().status == 200, lie
    assert "/elsewhere" not in provider.asked


@pytest.mark.parametrize("lie", ["huge jwks", "no JSON of jwks", "status of jwks", "redirect of jwks"])
def test_keys_that_lie(browse_anew: Callable[[], Browser], provider: LyingProvider, lie: str) -> None:
    provider.lie = lie
    browser = browse_anew()
    assert browser.log_in().status == 502
    assert not browser.is_in
    assert "/elsewhere" not in provider.asked


@pytest.mark.parametrize("lie", METADATA)
def test_metadata_that_lie(browse_anew: Callable[[], Browser], provider: LyingProvider, lie: str) -> None:
    provider.lie = lie
    came = browse_anew().get("/login/oidc")
    assert came.status == 502
    assert came.location == ""
    assert "no-sign-on" not in came.cookies
    before = len(provider.asked)
    assert browse_anew().get("/login/oidc").status == 502
    assert len(provider.asked) == before  # it is not asked again at once


def test_a_slow_provider_holds_nobody_up(browse_anew: Callable[[], Browser], provider: LyingProvider) -> None:
    """Logins wait in bounded number; other requests are answered meanwhile."""
    browsers = [browse_anew() for _ in range(8)]
    states = [browser.begin()["state"] for browser in browsers]
    provider.lie = "slow token"
    came: list[int] = []
    waiting = [
        threading.Thread(target=lambda b=b, s=s: came.append(b.come_back(state=s, code="c").status))
        for b, s in zip(browsers, states, strict=True)
    ]
    for each in waiting:
        each.start()
    wait_until(lambda: len(came) == 4, TIMEOUT_S)
    assert came == [503] * 4
    assert browse_anew().get("/login").status == 200
    assert WebClient(browsers[0].url).post("/session", {"user": "root", "password": "s3c"}).status == 201
    for each in waiting:
        each.join()
    assert sorted(came) == [502] * 4 + [503] * 4
    provider.may_answer.set()


def test_a_key_that_is_new_counts_and_one_that_is_gone_does_not(
    browse_anew: Callable[[], Browser], provider: LyingProvider
) -> None:
    browser = browse_anew()
    assert browser.log_in().status == 200
    old = dict(provider.keys)
    provider.keys = {"k2": new_key()}
    try:
        wait_until(lambda: browse_anew().log_in().status == 200, TIMEOUT_S)
        provider.lie = "foreign key under a known kid"
        assert browse_anew().log_in().status == 502
    finally:
        provider.keys, provider.lie = old, ""


def test_states_and_codes_of_others(browse: Callable[[], Browser]) -> None:
    victim, attacker = browse(), browse()
    mine, theirs = victim.begin()["state"], attacker.begin()["state"]
    begun = dict(victim.cookies)
    for state in ("", theirs, mine[:-1], "ü"):
        victim.cookies = dict(begun)
        assert victim.come_back(state=state, code="c").status == 400, state
    victim.cookies = {"penstock_sign_on": "x"}
    assert victim.come_back(state=mine, code="c").status == 400
    victim.cookies = dict(begun)
    assert victim.come_back(state=mine, code="c", iss="https://other.example").status == 400
    state = victim.begin()["state"]
    begun = dict(victim.cookies)
    assert victim.come_back(state=state, code="c").status == 200
    again = browse()
    again.cookies = begun
    assert again.come_back(state=state, code="c").status == 400  # the same answer once more
    assert not again.is_in
    assert not attacker.is_in


def test_an_answer_that_refuses_is_shown_as_text(browse: Callable[[], Browser]) -> None:
    browser = browse()
    state = browser.begin()["state"]
    came = browser.come_back(state=state, error="access_denied", error_description="<script>alert(1)</script>\u202e")
    assert came.status == 401
    assert "access_denied" in came.text
    assert "<script>alert" not in came.text


@pytest.mark.parametrize(
    "to",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/login", "\t//evil.example"],
)
def test_login_redirects_nowhere_else(browse: Callable[[], Browser], to: str) -> None:
    came = browse().log_in(to)
    assert came.status == 200
    assert 'content="0; url=/"' in came.text
    assert "evil" not in came.text


@pytest.mark.parametrize("user", ["root", "sso:root", "a/b", "#", "x" * 3_000, "\u202eroot", "root\nroot"])
def test_no_claim_makes_a_user_somebody_else(server: PenstockServer, provider: LyingProvider, user: str) -> None:
    provider.user = user
    browser = Browser(console_url(server), provider)
    if browser.log_in().status == 200:
        client = WebClient(browser.url, Cookie=f"penstock_session={browser.cookies['penstock_session']}")
        assert client.get("/session").json["user"] == f"sso:{user}"
    assert not audit_lines(server, "peer_connected", user="root")


def test_names_without_the_prefix_of_the_console_do_not_get_in(
    make: Callable[..., PenstockServer], provider: LyingProvider, tmp_path: Path
) -> None:
    """The store judges names: one that gives others than the console expects shuts the provider's users out."""
    server = make(auth__jwt_user_claim="name")
    browser = Browser(console_url(server), provider)
    assert browser.log_in().status in (401, 403)
    assert not browser.is_in


def test_a_prefix_is_asked_for(make: Callable[..., PenstockServer]) -> None:
    server = make(auth__jwt_keys_url_prefix="sso-")
    wait_until(lambda: "set auth.jwt_keys_url_prefix to something with a colon" in server.log_text(), TIMEOUT_S)


def test_a_ban_holds(make: Callable[..., PenstockServer], provider: LyingProvider, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nusers = ["root"]\nallow = ["admin"]\ntopics = ["#"]\n')
    server = make(auth__permissions_file=rules)
    url = console_url(server)
    browser = Browser(url, provider)
    assert browser.log_in().status == 200
    begun = WebClient(url).post("/session", {"user": "root", "password": "s3c"})
    root = WebClient(url, Cookie=begun.headers["set-cookie"].partition(";")[0], X_CSRF_Token=begun.json["csrf_token"])
    ban = {"kind": "user", "value": "sso:alice", "for_s": 600, "reason": "test"}
    assert root.post("/bans", ban).status == 204
    wait_until(lambda: not browser.is_in, TIMEOUT_S)
    assert Browser(url, provider).log_in().status == 403
