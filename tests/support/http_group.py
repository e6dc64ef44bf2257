"""A program that consumes a group by the console's HTTP API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support.console_process import Answered, WebClient


class HttpGroup:
    """One group, as one user asks for it."""

    def __init__(self, client: WebClient, name: str, topic_filter: str) -> None:
        self.client = client
        self.name = name
        self.topic_filter = topic_filter

    def ask(self, what: str, **body: Any) -> Answered:
        return self.client.post(f"/groups/{self.name}/{what}", {"filter": self.topic_filter} | body)

    def pop(self, **body: Any) -> list[Any]:
        answer = self.ask("pop", **body)
        assert answer.status == 200, answer
        found: list[Any] = answer.json["messages"]
        return found

    def settle(self, what: str, popped: Iterable[Any], **body: Any) -> Answered:
        return self.ask(what, handles=[each["handle"] for each in popped], **body)

    def ack(self, *popped: Any) -> None:
        answer = self.settle("ack", popped)
        assert (answer.status, answer.json) == (200, {"settled": len(popped), "stale": []}), answer


def payloads(popped: Iterable[Any]) -> list[str]:
    return [each["message"]["payload"] for each in popped]
