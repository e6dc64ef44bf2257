"""`penstock chaos`: a short run keeps its promises, and a promise that is broken on the way is found."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.packets import PubAck, Publish, PubRec, QoS
from loadtest.chaos.ledger import SentMessage, until
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.results import Chaos
from loadtest.chaos.wire import Wire
from tests.conftest import ServerFactory
from tests.support.server_process import ROOT

PUBLISH = 3
LIES_AT = 20
TIMEOUT_S = 240


def command(folder: Path, *options: str) -> subprocess.Popen[str]:
    """With its temporary folders below `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "chaos", *options],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("gateways", ["2", "0"])
def test_a_short_run(tmp_path: Path, gateways: str) -> None:
    json = tmp_path / "found.json"
    options = ("--seed", "1", "--duration", "8", "--faults", "kill,stop,clock", "--gateways", gateways, "--rate", "100")
    run = command(tmp_path, *options, "--json", str(json), "--report", str(tmp_path / "found.md"))
    said, complained = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, said + complained
    assert "served again after" in said
    assert "\nkept: " in said
    found = msgspec.json.decode(json.read_bytes(), type=Chaos)
    assert found.faults >= 1
    assert found.counts["acknowledged"] > 100
    assert found.complaints == []
    assert (tmp_path / "found.md").read_text().startswith("# Chaos: seed 1\n")
    assert list(tmp_path.glob("penstock-chaos-*")) == []


def test_a_plan(tmp_path: Path) -> None:
    plans = [command(tmp_path, "--plan", "--faults", "kill,cut").communicate(timeout=TIMEOUT_S)[0] for _ in range(2)]
    assert plans[0] == plans[1]
    assert "s calm, then " in plans[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--faults", "kill,rain"), "penstock: 'rain': not a fault; --faults takes kill, term, stop,"),
        (("--faults", "delay", "--gateways", "0"), "penstock: no fault of delay applies to this deployment"),
    ],
)
def test_chaos_reports_options_that_it_cannot_do(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    run = command(tmp_path, *options)
    _, complained = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode
    assert says in complained
    assert list(tmp_path.glob("penstock-chaos-*")) == []


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("part", ["store", "gateway-0"])
def test_chaos_leaves_nothing_behind(tmp_path: Path, by: signal.Signals, part: str) -> None:
    """Whether it is ended while it starts its deployment, or later."""
    run = command(tmp_path, "--duration", "600", "--faults", "stop", "--gateways", "1")
    deadline_s = time.monotonic() + TIMEOUT_S
    logs: list[Path] = []
    while not logs or "ready" not in logs[0].read_text():
        logs = list(tmp_path.glob(f"penstock-chaos-*/{part}.log"))
        assert run.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    run.send_signal(by)
    run.communicate(timeout=TIMEOUT_S)
    assert run.returncode
    assert list(tmp_path.glob("penstock-chaos-*")) == []
    assert [process for process in psutil.process_iter() if str(tmp_path) in clock_of(process)] == []


def clock_of(process: psutil.Process) -> str:
    """Where it is told what time it is."""
    try:
        return process.environ().get("WRONG_CLOCK", "")
    except psutil.Error:
        return ""


# --- a server that breaks a promise

Lie = Callable[[bytes], tuple[list[bytes], list[bytes]]]
"""Of a PUBLISH packet: what goes on in its place, and what goes back."""


class Liar(Wire):
    """Between clients and a server, and treats one PUBLISH of a direction as nobody should."""

    def __init__(self, server_port: int, lie: Lie, to_server: bool) -> None:
        self._lie = lie
        self._to_server = to_server
        self._seen = 0
        super().__init__(server_port)

    def restart(self) -> None:
        raise NotImplementedError

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._store_port)
        self._writers |= {writer, server_writer}
        async with asyncio.TaskGroup() as both:
            both.create_task(self._carry(reader, server_writer, writer, self._to_server))
            both.create_task(self._carry(server_reader, writer, server_writer, not self._to_server))

    async def _carry(
        self, reader: asyncio.StreamReader, on: asyncio.StreamWriter, back: asyncio.StreamWriter, may_lie: bool
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                packet = await one_packet(reader)
                forth: list[bytes] = [packet]
                answers: list[bytes] = []
                if may_lie and packet[0] >> 4 == PUBLISH:
                    self._seen += 1
                    if self._seen == LIES_AT:
                        forth, answers = self._lie(packet)
                on.write(b"".join(forth))
                back.write(b"".join(answers))
        on.close()


async def one_packet(reader: asyncio.StreamReader) -> bytes:
    packet = await reader.readexactly(2)
    while packet[-1] & 0x80:
        packet += await reader.readexactly(1)
    length, _ = decode_varint(packet, 1)
    return packet + await reader.readexactly(length)


def swallow(packet: bytes) -> tuple[list[bytes], list[bytes]]:
    """And say that it has arrived."""
    publish = decode(packet[0], packet[decode_varint(packet, 1)[1] :], 5)
    assert isinstance(publish, Publish)
    answer = PubAck if publish.qos is QoS.AT_LEAST_ONCE else PubRec
    return [], [encode(answer(publish.packet_id or 0), 5)]


def repeat(packet: bytes) -> tuple[list[bytes], list[bytes]]:
    """As another message."""
    publish = decode(packet[0], packet[decode_varint(packet, 1)[1] :], 5)
    assert isinstance(publish, Publish)
    publish.packet_id = 60_000
    return [packet, encode(publish, 5)], []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("lie", "qos", "to_server", "complaint"),
    [
        (swallow, 1, True, "acknowledged, but not delivered"),
        (swallow, 1, False, "acknowledged, but not delivered"),
        (swallow, 2, False, "acknowledged, but not delivered"),
        (repeat, 2, False, "QoS 2 or 0, but not once"),
    ],
)
async def test_a_broken_promise_is_found(
    penstock_server: ServerFactory, lie: Lie, qos: int, to_server: bool, complaint: str
) -> None:
    liar = Liar(penstock_server(flush="async").port, lie, to_server)
    load = ChaosLoad(liar, seed=1)
    publisher = load.publisher("p", ("t", qos))
    load.subscriber("s", {"t": 2})
    try:
        async with load.running():
            load.allow(3 * LIES_AT)
            await load.all_acknowledged()
            last = SentMessage("p", "t", qos, load.ledger.newest["p"])
            await until(lambda: last in load.ledger.delivered["s"], "the last message")
    finally:
        await asyncio.to_thread(liar.close)
    assert publisher.idle
    found = load.ledger.complaints()
    assert [complaint in each for each in found] == [True], found
