"""Publish a message by hand."""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta

from starlette.responses import Response

from penstock.console.errors import Problem
from penstock.console.pages.rendering import PageVisit, page
from penstock.console.views.payloads import json_of
from penstock.sdk.outgoing import PublishLater

QOS = ("0", "1", "2")
MOST_HEADERS = 32


@page("/publish")
async def publish_page(visit: PageVisit) -> Response:
    return visit.show("publish.html", topic=visit.asked("topic"))


@page("/publish", ["POST"])
async def publish(visit: PageVisit) -> Response:
    form = await visit.form()
    topic = form.get("topic", "")
    receipt = await visit.caller.connection.publish(topic, payload_of(form), **options_of(form))
    return visit.show("published.html", receipt=receipt, topic=topic)


def payload_of(form: dict[str, str]) -> bytes:
    """Raises Problem."""
    text, kind = form.get("payload", ""), form.get("kind", "text")
    if kind == "json" and json_of(text.encode()) is None and text.strip() != "null":
        raise Problem(400, "bad-payload", "the payload is not JSON", "correct it, or publish it as text")
    if kind == "base64":
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            raise Problem(
                400, "bad-payload", "the payload is not base64", "correct it, or publish it as text"
            ) from None
    return text.encode()


def options_of(form: dict[str, str]) -> PublishLater:
    """Raises Problem."""
    qos = form.get("qos", "1")
    if qos not in QOS:
        raise Problem(400, "bad-parameter", "qos: neither 0, 1 nor 2", "choose one of them")
    options: PublishLater = {"qos": int(qos), "retain": "retain" in form}
    if form.get("key"):
        options["key"] = form["key"]
    if form.get("delay"):
        options["delay"] = _seconds(form["delay"], "delay")
    if form.get("expiry"):
        options["expires_after"] = timedelta(seconds=_seconds(form["expiry"], "expiry"))
    headers = headers_of(form.get("headers", ""))
    if headers:
        options["headers"] = headers
    return options


def headers_of(text: str) -> dict[str, str]:
    """`name: value`, one on a line. Raises Problem."""
    lines = [line for line in text.split("\n") if line.strip()]
    pairs = [line.partition(":") for line in lines]
    if len(lines) > MOST_HEADERS or not all(colon and name.strip() for name, colon, _ in pairs):
        raise Problem(400, "bad-parameter", "headers: not one `name: value` on each line, 32 at most", "correct them")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _seconds(text: str, name: str) -> float:
    """Raises Problem."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < 10**10:
        raise Problem(400, "bad-parameter", f"{name}: no number of seconds", "write it as 90 or 0.5")
    return number
