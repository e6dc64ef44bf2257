"""A server whose consumer groups people look after at the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from penstock.sync import Client
from tests.support.console_process import WebClient, basic, console_url
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

TIMEOUT_S = 30


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
        if payloads:
            messages = [{"topic": topic, "payload": payload} for payload in payloads]
            assert self.root.post("/messages", messages).status == 201

    def die(self, name: str, *payloads: str, topic_filter: str = "line/#") -> None:
        """Messages to line/0, line/1, ..., that a group gives up."""
        with self.client() as client, client.subscribe(topic_filter, group=name, start="now") as members:
            client.publish_many([(f"line/{number}", payload) for number, payload in enumerate(payloads)])
            for message in islice(members, len(payloads)):
                message.reject(f"no use: {message.payload.decode()[:40]}", wait=False)
            wait_until(lambda: self.group(name)["dead_letters"] == len(payloads), TIMEOUT_S)

    def letters(self, name: str) -> list[Any]:
        """All that are open, page by page."""
        found: list[Any] = []
        after: dict[str, str] = {}
        while True:
            page = self.root.get(f"/groups/{name}/dead-letters", limit=2, **after).json
            found += page["dead_letters"]
            if page["next"] is None:
                return found
            after = {"after": page["next"]}

    def published(self, topic_filter: str = "line/#") -> list[str]:
        with self.client() as client:
            return [message.payload.decode() for message in client.read(topic_filter)]

    def group(self, name: str) -> Any:
        (found,) = self.root.get("/groups", name=name).json["groups"]
        return found
