"""One chaos run: a deployment, its load, the plan's faults in turn, and a check of the ledger after each."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Sequence

from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos import memory
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.faults import Faults
from loadtest.chaos.ledger import until
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.plan import ChaosStep, Fault
from loadtest.chaos.results import Chaos, Done
from loadtest.errors import LoadTestError

TOPICS = (("load/a", 1), ("load/b", 2), ("load/shared", 2), ("other/shared", 1))
PATIENCE_S = 2.0
"""Of clients: they ping after so much silence, and after as much again they reconnect elsewhere."""
PAUSE_S = 0.1
SESSION_S = 7 * 86_400
"""Longer than any clock jump, so that no session expires by one."""
TICK_S = 0.05
RECOVERY_S = 60
"""A client that is not served for so long after a fault counts as never served."""
CHURN = 0.05
"""Probability per tick that a client loses its connection, or abandons it."""
FAREWELLS = frozenset(
    (
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.USE_ANOTHER_SERVER,
        ReasonCode.SERVER_UNAVAILABLE,
        ReasonCode.SERVER_BUSY,
        ReasonCode.SESSION_TAKEN_OVER,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.UNSPECIFIED_ERROR,
    )
)


class ChaosRun:
    """Owner of the load and of the time."""

    def __init__(self, cluster: Cluster, faults: Faults, chaos: Chaos, say: Callable[[str], None]) -> None:
        """`say` gets a line for each step."""
        self._cluster = cluster
        self._faults = faults
        self._chaos = chaos
        self._say = say
        self._is_calm = False
        self._load = _load(cluster, chaos.seed)
        self._begun_s = 0.0

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._begun_s

    async def run(self, steps: Sequence[ChaosStep], duration_s: float, progress: Callable[[str, float], None]) -> None:
        """Run the steps. Ends with the first broken promise, after the last step, or when the time is over."""
        self._begun_s = asyncio.get_running_loop().time()
        await self._start(steps, duration_s, progress)
        self._chaos.lasted_s = self._now_s
        self._chaos.counts = dict(self._load.ledger.counts)
        self._chaos.complaints += memory.complaints(self._chaos.memory)

    async def _start(
        self, steps: Sequence[ChaosStep], duration_s: float, progress: Callable[[str, float], None]
    ) -> None:
        async with self._load.running():
            pace = asyncio.create_task(self._pace())
            try:
                await self._served("the start")
                await self._count()
                for number, step in enumerate(steps, 1):
                    if self._chaos.complaints or self._now_s > duration_s:
                        return
                    progress(f"{number}/{len(steps)} {step}", min(1.0, self._now_s / duration_s))
                    await self._step(step)
            finally:
                pace.cancel()

    async def _step(self, step: ChaosStep) -> None:
        at_s = self._now_s
        away = self._load.rng.choice(self._load.subscribers) if self._load.rng.random() < 0.3 else None
        if away:
            away.go_offline()
        await asyncio.sleep(step.calm_s)
        async with asyncio.TaskGroup() as together:
            for fault in step.faults:
                together.create_task(self._suffer(fault))
        if away:
            away.online.set()
        recovery_s = await self._served(str(step))
        done = Done(round(at_s, 1), [str(fault) for fault in step.faults], recovery_s)
        self._chaos.done.append(done)
        self._say(str(done))
        await self._count()

    async def _suffer(self, fault: Fault) -> None:
        await asyncio.sleep(fault.after_s)
        try:
            await self._faults.begin(fault)
            try:
                await asyncio.sleep(fault.lasts_s)
            finally:
                await self._faults.end(fault)
        except (RuntimeError, LoadTestError) as error:
            self._check([f"{fault}: {error}"])
        except subprocess.TimeoutExpired:
            self._check([f"{fault}: it does not end"])

    async def _served(self, after: str) -> float | None:
        """Seconds until every client is served with messages sent from now on; None: never."""
        self._load.ledger.mark()
        begun_s = self._now_s
        clients = self._load.clients
        is_served = self._load.ledger.is_served
        try:
            await until(lambda: all(is_served(each.client_id) for each in clients), "", RECOVERY_S, TICK_S / 5)
        except TimeoutError:
            names = ", ".join(each.client_id for each in clients if not is_served(each.client_id))
            self._chaos.complaints.append(f"{names}: not served within {RECOVERY_S} s of {after}")
            return None
        return round(self._now_s - begun_s, 3)

    async def _count(self) -> None:
        """Pause the load, wait until everything acknowledged is delivered, check the ledger, and forget the round."""
        ledger = self._load.ledger
        self._is_calm = True
        for publisher in self._load.publishers:
            publisher.budget = 0
        await self._while_it_goes_on(lambda: all(publisher.idle for publisher in self._load.publishers), "acknowledged")
        await self._while_it_goes_on(lambda: ledger.all_delivered, "delivered")
        self._check(ledger.close_round())
        self._is_calm = False
        parts = {"store": self._cluster.store} | {
            f"gateway {i}": gateway for i, gateway in enumerate(self._cluster.gateways, 1)
        }
        self._check([f"{name} ended by itself: see its log" for name, part in parts.items() if not part.is_running])
        pids = {name: part.process.pid for name, part in parts.items()}
        memory.look(self._chaos.memory, pids | {"chaos itself": os.getpid()})

    async def _while_it_goes_on(self, condition: Callable[[], bool], what: str) -> None:
        seen = -1
        while not condition() and seen != self._load.ledger.events:
            seen = self._load.ledger.events
            try:
                await until(condition, what, RECOVERY_S, 2 * TICK_S)
            except TimeoutError:
                continue
        if not condition():
            self._check([f"not everything is {what} after {RECOVERY_S} s without any news"])

    def _check(self, complaints: list[str]) -> None:
        self._chaos.complaints += complaints

    async def _pace(self) -> None:
        """Publish evenly at the rate, and let a random client lose its connection now and then."""
        publishers = self._load.publishers
        each_s = self._chaos.rate / len(publishers)
        owed = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            if self._is_calm:
                continue
            owed += each_s * TICK_S
            for publisher in publishers:
                if publisher.budget < each_s:
                    publisher.allow(int(owed))
            owed -= int(owed)
            if self._load.rng.random() < CHURN:
                client = self._load.rng.choice(self._load.clients)
                self._load.rng.choice((client.cut, client.move))()


def _load(cluster: Cluster, seed: int) -> ChaosLoad:
    """Persistent sessions of both versions, every QoS, with filters of every kind of queue."""
    load = ChaosLoad(_AnyPort(cluster), seed)
    load.publisher("p5", *TOPICS).may_be_refused = True
    load.publisher("p3", *TOPICS, version=4)
    load.publisher("p5-exact", ("load/b", 2), ("load/b", 2), ("load/c", 2)).may_be_refused = True
    load.publisher("p3-one", ("load/d", 1), version=4)
    load.publisher("p5-zero", ("load/a", 0), ("other/e", 0))
    load.publisher("p3-zero", ("load/f", 0), version=4)
    load.subscriber("s-exact", {"load/b": 2})
    load.subscriber("s-wild", {"+/shared": 2})
    load.subscriber("s-level", {"load/#": 1})
    load.subscriber("s-two", {"load/+": 2, "load/a": 1})
    load.subscriber("s-zero", {"+/+": 0}, version=4)
    load.subscriber("s-all", {"#": 2}, version=4)
    for client in load.clients:
        client.accepted_farewells = client.accepted_refusals = FAREWELLS
        client.patience_s, client.pause_s = PATIENCE_S, PAUSE_S
        client.keep_session(SESSION_S)
    return load


class _AnyPort:
    """Gives clients the addresses in turn, whether or not the gateway behind an address runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = 0

    @property
    def port(self) -> int:
        self._turn += 1
        return self._cluster.ports[self._turn % len(self._cluster.ports)]

    def restart(self) -> None:
        self._cluster.restart()
