"""A store and gateways as processes that can be killed, stopped, and cut off from each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from loadtest.chaos.part import Part
from loadtest.chaos.redis_server import RedisServer
from loadtest.chaos.wire import Wire
from loadtest.ports import free_port


def _no_environment(name: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class ClusterOptions:
    """The parts of a cluster beside its store and gateways.

    wire_type: of the wires between gateways and store; data: the store's folder, if it is not in the cluster's;
    environment_of: what a part's process has in its environment, by the name of its log: store, gateway-0.
    """

    with_redis: bool = False
    wire_type: type[Wire] = Wire
    data: Path | None = None
    environment_of: Callable[[str], Mapping[str, str]] = _no_environment


class Cluster:
    """A store; gateways that reach it each through a Wire of its own; and Redis, behind a Wire as well."""

    def __init__(
        self,
        folder: Path,
        gateways: int = 2,
        settings: Mapping[str, object] | None = None,
        wires: bool = True,
        options: ClusterOptions = ClusterOptions(),
    ) -> None:
        """`gateways`: 0 means one process that is all. `wires`: what lies between gateways and store can be cut;
        without it is faster.
        """
        self.data = options.data or folder / "data"
        self._rng = random.Random(0)
        self.wires: list[Wire] = []
        self.gateways: list[Part] = []
        self.ports: list[int] = []
        self.has_redis = options.with_redis
        self._ends = ExitStack()
        try:
            self._start(folder, gateways, dict(settings or {}), wires, options)
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        folder: Path,
        gateways: int,
        settings: dict[str, object],
        wires: bool,
        options: ClusterOptions,
    ) -> None:
        if self.has_redis:
            self.redis = RedisServer(folder)
            self._ends.callback(_end, self.redis)
            self.redis_wire = Wire(self.redis.port)
            self._ends.callback(self.redis_wire.close)
            settings["notify.redis_url"] = f"redis://127.0.0.1:{self.redis_wire.port}/0"

        def part(name: str, *command: str) -> Part:
            made = Part(folder / f"{name}.log", list(command), settings, options.environment_of(name))
            self._ends.callback(_end, made)
            return made

        store_port = free_port()
        self.store_url = f"tcp://127.0.0.1:{store_port}"
        if not gateways:
            self.ports.append(free_port())
            listens = f"mqtt://127.0.0.1:{self.ports[0]}"
            self.store = part("store", "serve", "--listen", listens, "--data", str(self.data))
            return
        self.store = part("store", "store", "--listen", self.store_url, "--data", str(self.data))
        for i in range(gateways):
            reached = store_port
            if wires:
                self.wires.append(options.wire_type(store_port))
                self._ends.callback(self.wires[i].close)
                reached = self.wires[i].port
            self.ports.append(free_port())
            listens = f"mqtt://127.0.0.1:{self.ports[i]}"
            store = f"tcp://127.0.0.1:{reached}"
            self.gateways.append(part(f"gateway-{i}", "gateway", "--store", store, "--listen", listens))

    @property
    def port(self) -> int:
        """The port of any running gateway; of any at all if none runs."""
        running = [
            port for port, part in zip(self.ports, self.gateways or [self.store], strict=True) if part.is_running
        ]
        return self._rng.choice(running or self.ports)

    @property
    def store_reads(self) -> int:
        """Reads of any kind that gateways requested from the store."""
        return self.store.metric("penstock_wire_reads_total")

    def cut_store_off(self) -> None:
        """Cut all gateways off from the store."""
        for wire in self.wires:
            wire.cut()

    def mend(self) -> None:
        for wire in self.wires:
            wire.mend()

    def restart(self) -> None:
        """Kill all processes, and start them again."""
        for part in (*self.gateways, self.store):
            part.kill()
        self.store.start()
        for gateway in self.gateways:
            gateway.start()

    def close(self) -> None:
        """End all processes, the gateways first."""
        self._ends.close()


def _end(process: Part | RedisServer) -> None:
    process.resume()
    process.kill()
