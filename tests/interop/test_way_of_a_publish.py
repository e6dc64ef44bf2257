"""docs/way-of-a-publish.md names the functions that a PUBLISH really goes through, in their order."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest
from penstock.config.settings import Settings
from penstock.servers.access import AccessLoader
from penstock.servers.client_tls import ClientTls
from penstock.servers.process import Stop
from penstock.servers.serving import Serving, ServingParts
from penstock.servers.starting import Starting
from penstock.tracing.opening import open_tracing
from store.audit import Audit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "way-of-a-publish.md").read_text()
ROW = re.compile(r"^\| (\d+) \| `([\w/.]+)` \| `([\w.]+)`( ◆)? \| \S.*\.(?: \S.*)? \|$", re.MULTILINE)
INTERFACE = re.compile(r"`(\w+)` in `([\w/.]+)` \| (?:constructor|`(\w+)`) \| `(\w+)`")
WAYS = ("Into the log and the queues", "To the subscriber", "To the acknowledgement")
PUBLISH = Publish("way/1", b"hello", qos=QoS(1), packet_id=7)
AWAITS = ("store/log/flush.py", "Flusher.catch_up")
SYNCS = ("store/log/flush.py", "Flusher._sync")
TURN_ENDED = ("gateway/clients/connections.py", "Connections.turn_ended")
ACK = b"\x40\x02\x00\x07"


class Hop(NamedTuple):
    """A row of the page."""

    path: str
    function: str
    is_compiled: bool


class Calls:
    """The functions of the project that are called, in all threads that are started later and in this one.

    The disk takes longer than a turn: the log's thread syncs once the turn that wrote the message is over.
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.is_on = False
        self._has_turn_ended = threading.Event()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        call = str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname
        if call == SYNCS:
            assert self._has_turn_ended.wait(20)
        self.found.append(call)
        if call == TURN_ENDED and AWAITS in self.found:
            self._has_turn_ended.set()


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    before, of_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    yield calls
    sys.setprofile(before)
    threading.setprofile(of_threads)


def way(title: str) -> list[Hop]:
    """The hops of one table of the page."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = ROW.findall(section)
    assert [int(number) for number, *_ in rows] == list(
        range(1, section.count("\n| "))
    )  # the head of the table is one more
    return [Hop(path, function, bool(mark)) for _, path, function, mark in rows]


def connected(port: int, name: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 20)
    client.sendall(encode(Connect(client_id=name, protocol_version=4), 4))
    assert client.recv(4, socket.MSG_WAITALL) == b"\x20\x02\x00\x00"
    return client


def publish(port: int, calls: Calls) -> None:
    """Send one message from one client to another one; returns once both have what they wait for."""
    with connected(port, "subscriber") as subscriber, connected(port, "publisher") as publisher:
        subscriber.sendall(encode(Subscribe(1, (SubscriptionRequest("way/#", QoS(1)),)), 4))
        assert subscriber.recv(5, socket.MSG_WAITALL) == b"\x90\x03\x00\x01\x01"
        packet, delivered = encode(PUBLISH, 4), encode(replace(PUBLISH, packet_id=1), 4)
        calls.is_on = True
        publisher.sendall(packet)
        assert subscriber.recv(len(delivered), socket.MSG_WAITALL) == delivered
        assert publisher.recv(len(ACK), socket.MSG_WAITALL) == ACK
        calls.is_on = False


async def serve_one(folder: Path, calls: Calls) -> None:
    """A server as `penstock serve` has it, in this process, for one message."""
    settings = Settings()
    store = replace(settings.store, data=folder, flush="sync")
    gateway = replace(settings.gateway, listen=("mqtt://127.0.0.1:0",))
    settings = replace(settings, store=store, gateway=gateway)
    async with AsyncExitStack() as closing:
        tracing, judging = open_tracing(settings, "serve", closing), AccessLoader(settings.auth)
        parts = ServingParts(settings, ClientTls(gateway), judging, Starting(), tracing, Audit, lambda _: None)
        serving = Serving(parts)
        closing.push_async_callback(serving.close)
        await serving.begin(Stop())
        await asyncio.to_thread(publish, serving.listeners.open[0].address.port, calls)


def test_a_publish_goes_the_way_that_the_page_says(tmp_path: Path, calls: Calls) -> None:
    asyncio.run(serve_one(tmp_path / "data", calls))
    for title in WAYS:
        left = iter(calls.found)
        missing = [hop for hop in way(title) if not hop.is_compiled and (hop.path, hop.function) not in left]
        assert not missing, f"{title}: not called, or not in this order: {missing[0]}"


def test_compiled_functions_that_the_page_names_exist() -> None:
    for hop in (hop for title in WAYS for hop in way(title) if hop.is_compiled):
        owner, _, name = hop.function.rpartition(".")
        text = (ROOT / hop.path).read_text()
        if owner:
            found = re.search(rf"^cdef class {owner}\b.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
            assert found, hop
            text = found[0]
        assert re.search(rf"^ *c?p?def [^\n(=]*\b{name}\(", text, re.MULTILINE), hop


def test_the_interfaces_of_calls_that_go_up_are_there() -> None:
    rows = INTERFACE.findall(PAGE)
    assert len(rows) == PAGE.split("\n## Calls that go up\n")[1].count("\n| `")
    packages = ("gateway", "notify", "lightqueue", "store", "penstock")
    sources = "\n".join(each.read_text() for package in packages for each in (ROOT / package).rglob("*.py"))
    for interface, path, method, owner in rows:
        assert f"\nclass {interface}(" in (ROOT / path).read_text(), interface
        assert f"def {method}(self" in sources or not method, method
        assert re.search(rf"^class {owner}\b", sources, re.MULTILINE), owner
