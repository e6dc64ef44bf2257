"""The operator of `penstock init --secure` logs in to the console with the password that it made, and may use all."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, HTTPSHandler, OpenerDirector, build_opener

import pytest

from loadtest.chaos.part import Part
from tests.interop.programs import TIMEOUT_S, run
from tests.interop.test_init import init
from tests.support.stores import wait_until


class Browser:
    """Follows redirects and keeps cookies, as a browser does."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        context = ssl.create_default_context(cafile=folder / "ca.pem")
        self._opener: OpenerDirector = build_opener(HTTPCookieProcessor(CookieJar()), HTTPSHandler(context=context))

    def see(self, path: str, form: dict[str, str] | None = None) -> tuple[int, str, str]:
        """Status, the path that it came to, and the page."""
        data = urlencode(form).encode() if form is not None else None
        try:
            with self._opener.open(self.url + path, data, TIMEOUT_S) as answer:
                return answer.status, answer.url.removeprefix(self.url), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.url.removeprefix(self.url), error.read().decode()


class SecureServer(Part):
    """`penstock serve` with the settings that init wrote, but at free ports."""

    says = "console"

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        free = {
            "admin": "127.0.0.1:0",
            "gateway.listen": "mqtts://127.0.0.1:0",
            "console.listen": "127.0.0.1:0",
        }
        super().__init__(log, ["serve", "--config", str(folder / "penstock.toml")], free)

    def found(self, pattern: str) -> str:
        return str(re.findall(pattern, self.log_text(), re.MULTILINE)[-1])

    @property
    def browser(self) -> Browser:
        return Browser(self.found(r"^console (\S+)"), self.folder)

    def publish(self, name: str, topic: str, payload: str) -> None:
        own = (self.folder / "clients" / f"{name}.{suffix}" for suffix in ("pem", "key"))
        certificate, key = map(str, own)
        files = ("--cafile", str(self.folder / "ca.pem"), "--cert", certificate, "--key", key)
        port = self.found(r"mqtts://127\.0\.0\.1:(\d+)")
        run("mosquitto_pub", "-h", "localhost", "-p", port, *files, "-i", name, "-q", "1", "-t", topic, "-m", payload)


@pytest.fixture(params=["http", "https"])
def secure(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SecureServer]:
    folder = tmp_path / "plant"
    init(folder)
    if request.param == "https":  # by the lines that stand there as a comment
        settings = folder / "penstock.toml"
        text, number = re.subn(
            r"^# (\[console\]|(?:hosts|tls_\w+) = )", r"\1", settings.read_text(), flags=re.MULTILINE
        )
        assert number == 4
        settings.write_text(text)
    server = SecureServer(folder, tmp_path / "serve.log")
    assert server.browser.url.startswith(f"{request.param}://")
    yield server
    server.terminate()


def logged_in(server: SecureServer) -> Browser:
    browser = server.browser
    password = (server.folder / "clients" / "operator.password").read_text().strip()
    assert browser.see("/")[1].startswith("/login")
    status, path, _ = browser.see("/login", {"user": "operator", "password": password})
    assert (status, path) == (200, "/")
    return browser


def test_the_operator_sees_everything(secure: SecureServer) -> None:
    secure.publish("device-1", "devices/device-1/temperature", "21.5")
    assert secure.browser.see("/login", {"user": "operator", "password": "wrong"})[0] == 401
    browser = logged_in(secure)
    assert "<h1>Overview" in browser.see("/")[2]
    assert "21.5" in browser.see("/topic?name=devices/device-1/temperature")[2]
    for page in ("/topics", "/clients", "/groups", "/delayed", "/retained", "/publish", "/talkers", "/log"):
        status, path, text = browser.see(page)
        assert (status, path) == (200, page), text
    segment = re.findall(r'href="(/log/segment[^"]*)"', browser.see("/log")[2])[0]
    assert "devices/device-1/temperature" in browser.see(segment)[2]
    assert json.loads(browser.see("/api/v1/server")[2])["settings"]["auth.client_certificates"] is True


def test_an_operator_that_is_revoked_is_out(secure: SecureServer) -> None:
    browser = logged_in(secure)
    said = init(secure.folder, "--revoke", "operator")
    assert "1 certificate(s) revoked" in said
    assert not (secure.folder / "clients" / "operator.password").exists()
    assert "operator" not in (secure.folder / "passwords").read_text()
    wait_until(lambda: browser.see("/topics")[1].startswith("/login"), TIMEOUT_S)
