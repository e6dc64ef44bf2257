"""A fuzzer that knows MQTT, against a real server, with neighbours that must not be disturbed and the memory watched.

    python -m tests.fuzz --seconds 600 --seed 1

It starts a server of its own on a folder of its own. Exit status 0: no crash, no hang, no leak, no disturbed neighbour,
no error in the server's log that nobody expected, and nothing sent that is not MQTT.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from gateway.mqtt.errors import ProtocolError
from tests.fuzz.grammar import Talker
from tests.fuzz.neighbours import Neighbour, packets
from tests.support.server_process import PenstockServer, ServeOptions

TALKERS = 12
CONVERSATION_S = 3.0
SAMPLE_S = 1.0
SETTLE_S = 8.0
LEAK_BYTES = 192 << 20  # more memory of its own than after the first tenth of the time
SETTINGS = {
    "store.segment_bytes": 64 << 20,
    "store.retention_bytes": 512 << 20,
    "gateway.max_session_expiry_s": 20,
    "gateway.connect_timeout_s": 2,
    "gateway.write_buffer_bytes": 256 << 10,
}
LAST_LOG = Path(tempfile.gettempdir()) / "penstock-fuzz.log"
UNEXPECTED = ("Traceback", "unexpected error", "Error:", "CRITICAL")


class Fuzzer:
    """Talkers, neighbours and the memory of one server, for a time."""

    def __init__(self, server: PenstockServer, seed: int, seconds: float) -> None:
        self._server = server
        self._process = psutil.Process(server.process.pid)
        self._rng = random.Random(seed)
        self._seconds = seconds
        self._stop = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.memory_bytes: list[int] = []
        self.neighbours = [Neighbour(server.port, qos) for qos in range(3)]
        self.faults: list[str] = []

    async def run(self) -> None:
        tasks = [asyncio.create_task(each.run(self._stop)) for each in self.neighbours]
        tasks += [asyncio.create_task(self._talk(random.Random(self._rng.random()))) for _ in range(TALKERS)]
        tasks.append(asyncio.create_task(self._watch()))
        done, _ = await asyncio.wait(tasks, timeout=self._seconds, return_when=asyncio.FIRST_EXCEPTION)
        self._stop.set()
        finished, unfinished = await asyncio.wait(tasks, timeout=60)
        self.faults += [repr(task.exception()) for task in done | finished if task.exception() is not None]
        self.faults += [f"hangs: {task}" for task in unfinished]

    async def _talk(self, rng: random.Random) -> None:
        """One conversation after another."""
        while not self._stop.is_set():
            self.counts["conversations"] += 1
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONVERSATION_S * 2):
                    await self._converse(Talker(rng))

    async def _converse(self, talker: Talker) -> None:
        rng = talker.rng
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        listening = asyncio.create_task(self._listen(talker, reader, writer))
        try:
            await self._send(talker, writer, talker.opening())
            for _ in range(rng.randrange(1, 12)):
                if writer.is_closing() or reader.at_eof() or listening.done():
                    break
                await self._send(talker, writer, talker.more())
                await asyncio.sleep(rng.choice((0, 0, 0.01, 0.1)))
            if rng.random() < 0.05:  # silent, and open
                await asyncio.sleep(rng.random() * CONVERSATION_S)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await listening
            if rng.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()

    async def _send(self, talker: Talker, writer: asyncio.StreamWriter, data: bytes) -> None:
        """In one piece, or in several."""
        cut = talker.rng.randrange(len(data) + 1) if data and talker.rng.random() < 0.3 else 0
        for piece in filter(None, (data[:cut], data[cut:])):
            self.counts["bytes"] += len(piece)
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    async def _listen(self, talker: Talker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear and answer; some clients read nothing for a while."""
        if talker.rng.random() < 0.1:
            await asyncio.sleep(CONVERSATION_S)
        try:
            async for packet in packets(reader, talker.version):
                self.counts[f"got {type(packet).__name__}"] += 1
                if not writer.is_closing():
                    writer.write(talker.answer(packet))
        except ProtocolError as error:
            # A CONNECT that was broken in its version byte is answered in another version.
            self.counts["not of its version"] += 1
            if self.counts["not of its version"] > 2 + self.counts["conversations"] // 100:
                self.faults.append(f"the server sent what is not MQTT: {error}")

    async def _watch(self) -> None:
        """The memory of its own, and whether it lives."""
        while not self._stop.is_set():
            await asyncio.sleep(SAMPLE_S)
            if self._server.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._server.process.returncode}")
            self.memory_bytes.append(self._own_bytes())

    def _own_bytes(self) -> int:
        every = [self._process, *self._process.children(recursive=True)]
        return sum(int(each.memory_full_info().uss) for each in every)

    def judge(self) -> None:
        """Look at what is left once nobody talks any more."""
        settled = time.monotonic() + SETTLE_S
        while time.monotonic() < settled:
            time.sleep(SAMPLE_S)
        after = self._own_bytes()
        early = self.memory_bytes[len(self.memory_bytes) // 10 :][:5] or [after]
        if after - min(early) > LEAK_BYTES:
            self.faults.append(f"a leak: {min(early) >> 20} MiB early, {after >> 20} MiB in the end")
        self.memory_bytes.append(after)
        text = self._server.log_text()
        lines = [line for line in text.splitlines() if any(word in line for word in UNEXPECTED)]
        self.faults += [f"in the log: {line}" for line in lines[:5]]
        if lines:
            LAST_LOG.write_text(text)
            self.faults.append(f"the log is in {LAST_LOG}")
        try:
            self._server.terminate()
        except AssertionError:
            self.faults.append("it did not stop as it should")


def report(fuzzer: Fuzzer) -> None:
    counts = fuzzer.counts
    print(f"conversations {counts['conversations']:,}, sent {counts['bytes'] >> 20} MiB")
    print("received", {name[4:]: number for name, number in sorted(counts.items()) if name.startswith("got ")})
    slowest_s = max(each.slowest_s for each in fuzzer.neighbours)
    print(f"neighbours: {sum(each.received for each in fuzzer.neighbours):,} messages, slowest {slowest_s:.2f} s")
    mib = [number >> 20 for number in fuzzer.memory_bytes]
    print(f"memory of its own: first {mib[0]}, highest {max(mib)}, last {mib[-1]} MiB")
    for fault in fuzzer.faults:
        print("FAULT", fault)
    print("found nothing" if not fuzzer.faults else f"{len(fuzzer.faults)} faults")


def arguments() -> Namespace:
    parser = ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gateways", type=int, default=0, help="processes beside the store; 0: one for all")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    with tempfile.TemporaryDirectory() as folder:
        flags = {"flush": "async"} | ({"gateways": str(chosen.gateways)} if chosen.gateways else {})
        server = PenstockServer(Path(folder) / "data", Path(folder) / "log", ServeOptions(flags, SETTINGS))
        try:
            fuzzer = Fuzzer(server, chosen.seed, chosen.seconds)
            asyncio.run(fuzzer.run())
            fuzzer.judge()
            report(fuzzer)
        finally:
            server.kill()
    return bool(fuzzer.faults)


if __name__ == "__main__":
    sys.exit(main())
