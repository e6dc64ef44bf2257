"""A headless Chromium whose page is looked at through its DevTools protocol."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from websockets.sync.client import connect

TIMEOUT_S = 60


class Browser:
    """One tab with one page. It trusts the machine's authorities, and this certificate."""

    def __init__(self, url: str, folder: Path, certificate: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert program, "Chromium is missing; apt-get install chromium"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={folder}"]
        options.append(f"--ignore-certificate-errors-spki-list={_key_hash(certificate)}")
        self._folder = folder
        self._process = subprocess.Popen([program, *options, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)

    def wait_for(self, expression: str, wanted: object) -> None:
        """Until a JavaScript expression has this value on the page."""
        deadline_s = time.monotonic() + TIMEOUT_S
        with connect(self._page(deadline_s), max_size=None, proxy=None) as tools:
            found: object = None
            while time.monotonic() < deadline_s:
                tools.send(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": {"expression": expression}}))
                answer: dict[str, Any] = {}
                while answer.get("id") != 1:
                    answer = json.loads(tools.recv(TIMEOUT_S))
                found = answer["result"]["result"].get("value")
                if found == wanted:
                    return
                time.sleep(0.05)
            raise AssertionError(f"{found!r}, not {wanted!r}")

    def _page(self, deadline_s: float) -> str:
        """The address of its tab's DevTools."""
        while time.monotonic() < deadline_s:
            try:
                port = (self._folder / "DevToolsActivePort").read_text().split()[0]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=TIMEOUT_S) as answer:
                    pages = [each for each in json.load(answer) if each["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
            except (OSError, IndexError):
                """It is not there yet."""
            assert self._process.poll() is None, "Chromium ended"
            time.sleep(0.05)
        raise AssertionError("Chromium shows no page")


def _key_hash(certificate: Path) -> str:
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    return base64.b64encode(
        hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    ).decode()
