"""A store and gateways as processes of their own, each of which can be killed, stopped, and cut off from the others."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from store.wire.frames import HEAD
from store.wire.messages import KINDS, Message
from tests.redis_server import RedisServer
from tests.server_process import ROOT, START_TIMEOUT_S, STOP_TIMEOUT_S, ServeOptions, free_port

MESSAGES = {kind.number: kind.message for kind in KINDS}


ADMIN = ["--admin", "127.0.0.1:0"]


class Part:
    """One process; once constructed it has said that it is ready. start() begins it again, with the same address."""

    says = "ready"

    def __init__(self, log: Path, command: list[str], settings: Mapping[str, object], admin: bool = True) -> None:
        """`admin`: it has an admin endpoint, on some port, unless it is given one."""
        self._log = log
        self._command = command
        self._settings = settings
        self._admin = [] if not admin or "--admin" in command or "admin" in settings else ADMIN
        self._is_paused = False
        self.environment: dict[str, str] = {}  # what the next start has besides
        self.process: subprocess.Popen[bytes]
        self.start()

    @property
    def is_running(self) -> bool:
        return not self._is_paused and self.process.poll() is None

    def start(self) -> None:
        self._log.touch()
        already_logged_bytes = self._log.stat().st_size
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *self._command, *self._admin],
                cwd=ROOT,
                env=ServeOptions(settings=self._settings).environment() | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            exited = self.process.poll() is not None
            logged = self._log.read_bytes()[already_logged_bytes:].decode(errors="replace")
            if re.search(rf"^{self.says} .*\n", logged, re.MULTILINE):
                return
            if exited or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self._command} did not become ready:\n{logged}")
            time.sleep(0.02)

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def metric(self, name: str) -> int:
        """What its admin endpoint says, of a name with its labels."""
        admin = re.findall(r"^admin (\S+)", self.log_text(), re.MULTILINE)[-1]
        with urllib.request.urlopen(f"{admin}/metrics") as answer:
            found = re.search(rf"^{re.escape(name)} (\S+)", answer.read().decode(), re.MULTILINE)
        assert found, name
        return int(float(found[1]))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def restart(self) -> None:
        """SIGKILL, and start again."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: its sockets stay open, and it says nothing."""
        self._is_paused = True
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self._is_paused = False

    def terminate(self) -> None:
        """SIGTERM, which it must answer by exiting with 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(STOP_TIMEOUT_S) == 0, self.log_text()


class Wire:
    """What lies between a gateway and the store: a proxy in a thread of its own, which can be cut and mended."""

    def __init__(self, store_port: int) -> None:
        self._store_port = store_port
        self._loop = asyncio.new_event_loop()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            if not self._is_cut:
                store_reader, store_writer = await asyncio.open_connection("127.0.0.1", self._store_port)
                self._writers.add(store_writer)
                await asyncio.gather(self._copy(reader, store_writer), self._copy_back(store_reader, writer))
        writer.close()
        self._writers.discard(writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)

    async def _copy_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._copy(reader, writer)

    def cut(self) -> None:
        """End all connections, and let none come about."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _end(self) -> None:
        self._server.close()
        self._abort()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # now the sockets are closed

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self._is_cut = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class FrameWire(Wire):
    """A Wire that looks at what the store says, and may lose some of it."""

    def __init__(self, store_port: int) -> None:
        self.said: Counter[type[Message]] = Counter()
        self.loses: tuple[type[Message], ...] = ()
        super().__init__(store_port)

    async def _copy_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(HEAD.size)
                length, number, *_ = HEAD.unpack(head)
                message = MESSAGES[number]
                frame = head + await reader.readexactly(length - HEAD.size)
                self.said[message] += 1
                if message not in self.loses:
                    writer.write(frame)
                    await writer.drain()
        writer.close()
        self._writers.discard(writer)


class Cluster:
    """A store, and gateways that reach it each through a wire of its own; and Redis, behind a wire as well."""

    def __init__(
        self,
        folder: Path,
        gateways: int = 2,
        settings: Mapping[str, object] | None = None,
        with_redis: bool = False,
        wires: bool = True,
        wire_type: type[Wire] = Wire,
    ) -> None:
        """`wires`: what lies between gateways and store can be cut; without it is faster."""
        self.data = folder / "data"
        self._rng = random.Random(0)
        self.wires: list[Wire] = []
        self.gateways: list[Part] = []
        self.ports: list[int] = []
        settings = settings or {}
        if with_redis:
            self.redis = RedisServer(folder)
            self.redis_wire = Wire(self.redis.port)
            settings = {**settings, "notify.redis_url": f"redis://127.0.0.1:{self.redis_wire.port}/0"}
        self._has_redis = with_redis
        self.store_url = f"tcp://127.0.0.1:{(store_port := free_port())}"
        command = ["store", "--data", str(self.data), "--listen", self.store_url]
        self.store = Part(folder / "store.log", command, settings)
        try:
            for i in range(gateways):
                if wires:
                    self.wires.append(wire_type(store_port))
                port = free_port()
                reached = self.wires[i].port if wires else store_port
                own = ["--store", f"tcp://127.0.0.1:{reached}", "--listen", f"mqtt://127.0.0.1:{port}"]
                self.gateways.append(Part(folder / f"gateway-{i}.log", ["gateway", *own], settings))
                self.ports.append(port)
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        """That of some gateway that runs, if one does."""
        running = [port for port, part in zip(self.ports, self.gateways, strict=True) if part.is_running]
        return self._rng.choice(running or self.ports)

    @property
    def store_reads(self) -> int:
        """Reads of any kind that gateways asked the store for."""
        return self.store.metric("penstock_wire_reads_total")

    def cut_store_off(self) -> None:
        """No gateway reaches the store any more."""
        for wire in self.wires:
            wire.cut()

    def mend(self) -> None:
        for wire in self.wires:
            wire.mend()

    def restart(self) -> None:
        """Everything is killed, and starts again."""
        for part in (*self.gateways, self.store):
            part.kill()
        self.store.start()
        for gateway in self.gateways:
            gateway.start()

    def close(self) -> None:
        for part in (*self.gateways, self.store):
            part.resume()
            part.kill()
        for wire in self.wires:
            wire.close()
        if self._has_redis:
            self.redis.resume()
            self.redis.kill()
            self.redis_wire.close()
