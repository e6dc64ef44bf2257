"""The console in a headless Chromium that forgives nothing: an error on the page or a request to another host fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Playwright, Request, expect, sync_playwright

TIMEOUT_MS = 20_000
expect.set_options(timeout=TIMEOUT_MS)  # by itself it waits for 5 s, which is little on a busy machine
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
EXPECTED = "Failed to load resource: the server responded with a status of 4"
"""Chromium's line for an answer that refuses; a test that asks for one says how many."""


@dataclass
class ConsolePages:
    """Tabs of one browser window with its own cookies. `complaints`: what must not happen; check() asserts that."""

    context: BrowserContext
    url: str
    complaints: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> Page:
        page = self.context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"error on the page: {error}"))
        page.on("request", self._on_request)
        page.on("dialog", lambda dialog: self.complaints.append(f"a script asks: {dialog.message}"))
        page.goto(self.url + path)
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.text.startswith(EXPECTED):
            self.refusals.append(message.text)
        elif message.type in ("error", "warning"):
            self.complaints.append(f"{message.type} in the browser's console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if urlsplit(request.url).scheme != "data" and not request.url.startswith(f"{self.url}/"):
            self.complaints.append(f"a request to another host: {request.url}")

    def check(self, refusals: int = 0) -> None:
        """`refusals`: how many answers with a status of 400 or more the test asked for."""
        assert not self.complaints, self.complaints
        assert len(self.refusals) == refusals, self.refusals


@dataclass
class ConsoleBrowsers:
    """Windows of one Chromium."""

    playwright: Playwright
    windows: list[ConsolePages] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert program, "Chromium is missing; apt-get install chromium"
        self.browser = self.playwright.chromium.launch(executable_path=program, args=OPTIONS)

    def window(self, url: str, dark: bool = False, width: int = 1280, scripts: bool = True) -> ConsolePages:
        context = self.browser.new_context(
            color_scheme="dark" if dark else "light",
            viewport={"width": width, "height": 800},
            java_script_enabled=scripts,
            locale="en-GB",
        )
        self.windows.append(ConsolePages(context, url))
        return self.windows[-1]


@contextmanager
def chromium() -> Iterator[ConsoleBrowsers]:
    with sync_playwright() as playwright:
        browsers = ConsoleBrowsers(playwright)
        yield browsers
        browsers.browser.close()


def axe_script() -> Path:
    """The accessibility checker, as npm installs it for the tests of clients."""
    found = Path(__file__).parents[1] / "interop" / "js" / "node_modules" / "axe-core" / "axe.min.js"
    assert found.exists(), "axe-core is missing; run npm ci --prefix tests/interop/js"
    return found
