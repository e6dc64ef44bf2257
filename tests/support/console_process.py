"""`penstock console` as a subprocess, and what tests ask it over HTTP."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from loadtest.chaos.part import Part
from tests.support.server_process import START_TIMEOUT_S, PenstockServer
from tests.support.stores import wait_until

TIMEOUT_S = 30
API = "/api/v1"


def basic(user: str, password: str) -> str:
    """The value of the header Authorization."""
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def console_url(server: PenstockServer) -> str:
    """The address that a server says last for its console."""
    lines: list[str] = []

    def is_said() -> bool:
        lines[:] = re.findall(r"^console (https?://\S+)\n", server.log_text(), re.MULTILINE)
        return bool(lines)

    wait_until(is_said, START_TIMEOUT_S)
    return lines[-1]


@dataclass(frozen=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """The kind of the problem that it is."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json
        assert problem["status"] == self.status
        assert problem["remedy"]
        return str(problem["type"]).removeprefix("urn:penstock:problem:")


class WebClient:
    """Asks a console, with these headers."""

    def __init__(self, url: str, **headers: str) -> None:
        self.address = url.removeprefix("http://")
        self._headers = headers

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        """`path` below the API unless it begins with `/api`; a body that is no bytes is sent as JSON."""
        connection, response = self.begin(method, path, body, **headers)
        try:
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answered(response.status, found, response.read())
        finally:
            connection.close()

    def begin(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[HTTPConnection, HTTPResponse]:
        """A request, and its answer whose body is not read yet."""
        connection = HTTPConnection(self.address, timeout=TIMEOUT_S)
        sent = {name.replace("_", "-"): value for name, value in {**self._headers, **headers}.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent = {"Content-Type": "application/json"} | sent
        try:
            connection.request(method, path if path.startswith("/api") else API + path, body, sent)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def get(self, path: str, **query: Any) -> Answered:
        """`filter_` is filter."""
        asked = urlencode({name.rstrip("_"): value for name, value in query.items()}, quote_via=quote)
        return self.ask("GET", path + ("?" + asked if asked else ""))

    def post(self, path: str, body: Any = None, **headers: str) -> Answered:
        return self.ask("POST", path, body, **headers)

    @contextmanager
    def events(self, path: str, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """(id, data) of server-sent events, as they come; of a problem the id is `problem`."""
        connection, response = self.begin("GET", path, Accept="text/event-stream", **headers)
        assert response.status == 200, response.read()
        try:
            yield _events(response)
        finally:
            connection.close()


def _events(response: HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field in ("id", "event"):
            name = value
        elif field == "data":
            yield name, json.loads(value)


class ConsoleProcess(Part):
    """Started when it is made, on a free port, or again on the same one."""

    says = "console"

    def __init__(self, folder: Path, store: str, settings: Mapping[str, object] | None = None) -> None:
        self._folder = folder
        listen = {"console.listen": "127.0.0.1:0"} | dict(settings or {})
        super().__init__(folder / "console.log", ["console", "--store", store], listen, admin=False)

    @property
    def url(self) -> str:
        return str(re.findall(r"^console (\S+)", self.log_text(), re.MULTILINE)[-1])

    def client(self, **headers: str) -> WebClient:
        return WebClient(self.url, **headers)

    def close(self) -> None:
        self.resume()
        self.kill()
