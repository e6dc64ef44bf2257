"""Injuries to a running deployment, and a ledger: each missing message must be in a range that the store has
reported.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shlex
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest.chaos.cluster import Cluster, ClusterOptions
from loadtest.chaos.ledger import SentMessage, until
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.run import FAREWELLS
from loadtest.power.injuries import KINDS, SHARES, chosen, lost_by_a_lie
from loadtest.power.recording import Recorder, Syncs
from loadtest.power.run import new_folder
from loadtest.power.traffic import key_of
from loadtest.power.truth import Stored, messages
from store.files.folder import LOG, QUARANTINE
from store.files.marks import MARKS
from store.files.segment import segment_paths
from store.recovery.quarantine import Finding, Quarantine, lost_bytes

TOPICS = (("rot/a", 1), ("rot/b", 2), ("rot/c", 1))
BURST = 12  # messages of each publisher before an injury
INJURIES_OF_A_DEPLOYMENT = 100
AGAIN_AFTER_EXIT = 74  # EX_IOERR: a supervisor starts the store again
PATIENCE_S = 60.0
STARTS = 3
SETTINGS: dict[str, object] = {
    "store.segment_bytes": 65_536,
    "store.index_flush_ms": 20,
    "store.index_write_buffer_bytes": 65_536,
    "store.flush_interval_ms": 50,
    "store.flush_dirty_bytes": 1,
    "store.reserve_bytes": 0,
    "gateway.maximum_packet_size_bytes": 32_768,
    "gateway.sys_interval_s": 0,
}

Reader = Callable[[str, tuple[str, ...]], Awaitable[list[bytes]]]
"""Reads all payloads of these topics from a store at an address."""


class RotOptions(NamedTuple):
    injuries: int
    seed: int
    flush: str


class Rot(msgspec.Struct):
    """The results of a run."""

    command: str
    flush: str
    seed: int
    injuries: int = 0
    lasted_s: float = 0.0
    counts: dict[str, int] = {}
    complaints: list[str] = []
    kept: str = ""

    def verdict(self) -> str:
        """A few lines for people."""
        lines = [f"{self.injuries} injuries, flush {self.flush}, {self.lasted_s:.0f} s"]
        lines += [f"    {number:12,}  {name}" for name, number in sorted(self.counts.items())]
        if not self.complaints:
            return "\n".join([*lines, "kept: every promise"])
        return "\n".join([*lines, *self.complaints, f"data and logs: {self.kept}\nthe same again: {self.command}"])


async def rot(options: RotOptions, reader: Reader, progress: Callable[[str, float], None]) -> Rot:
    """Run the injuries. Ends with the first broken promise. Raises LoadTestError."""
    command = ["penstock", "chaos", "--rot", "--flush", options.flush, "--seed", str(options.seed)]
    found = Rot(shlex.join([*command, "--injuries", str(options.injuries)]), options.flush, options.seed)
    begun_s = time.monotonic()
    counts: Counter[str] = Counter()
    while found.injuries < options.injuries and not found.complaints:
        rng = random.Random(f"{options.seed} {found.injuries}")
        most = min(INJURIES_OF_A_DEPLOYMENT, options.injuries - found.injuries)
        folder = new_folder().resolve()
        try:
            async with _deployed(folder, options.flush, rng, reader, counts) as suffering:
                while suffering.injuries < most and not suffering.complaints:
                    await suffering.step(most - suffering.injuries)
                    progress(f"{found.injuries + suffering.injuries} injuries", found.injuries / options.injuries)
            found.complaints += suffering.complaints
            found.injuries += suffering.injuries
        finally:
            if found.complaints:
                found.kept = str(folder)
            else:
                shutil.rmtree(folder)
    found.counts = dict(counts)
    found.lasted_s = round(time.monotonic() - begun_s, 1)
    return found


@asynccontextmanager
async def _deployed(
    folder: Path, flush: str, rng: random.Random, reader: Reader, counts: Counter[str]
) -> AsyncIterator[_Suffering]:
    data = folder / "data"
    data.mkdir()
    recorder = Recorder(folder, data)
    unrecorded = recorder.environment | {"RECORD_FILE": "/dev/null"}
    settings = SETTINGS | {"store.flush": flush}
    cluster = await asyncio.to_thread(
        lambda: Cluster(
            folder,
            1,
            settings,
            wires=False,
            options=ClusterOptions(data=data, environment_of=lambda name: unrecorded if name == "store" else {}),
        )
    )
    try:
        load = ChaosLoad(cluster, rng.randrange(1 << 30))
        load.publisher("p5", *TOPICS).may_be_refused = True
        load.publisher("p3", *TOPICS[:2], version=4)
        for client in load.clients:
            client.patience_s, client.pause_s = 2.0, 0.05
            client.accepted_farewells = client.accepted_refusals = FAREWELLS
        async with load.running():
            yield _Suffering(_Deployed(cluster, recorder, load, flush), rng, reader, counts)
    finally:
        cluster.close()


class _Deployed(NamedTuple):
    """The deployment: processes, the recorder of their writes, their clients, and the flush mode of the store."""

    cluster: Cluster
    recorder: Recorder
    load: ChaosLoad
    flush: str


class _Suffering:
    """One deployment, its supervisor, and all messages that it ever acknowledged."""

    def __init__(self, deployed: _Deployed, rng: random.Random, reader: Reader, counts: Counter[str]) -> None:
        self._cluster, self._recorder, self._load, self._flush = deployed
        self._rng = rng
        self._reader = reader
        self._counts = counts
        self._places: dict[str, set[Stored]] = {}  # all places of each message in the log, ever
        self._acked: set[str] = set()
        self._done: list[str] = []
        self._lied_from: int | None = None  # log_offset from which a lying disk may have lost bytes in this step
        self.injuries = 0
        self.complaints: list[str] = []

    async def step(self, most: int) -> None:
        """One step: messages, injuries before and after the store's end, a start, and the checks."""
        self._done = []
        kinds = self._rng.choices(KINDS, SHARES, k=min(most, self._rng.choice((1, 2, 3, 4))))
        syncs = [kind for kind in kinds if "sync" in kind][:1]  # the store ends after one of these
        others = [kind for kind in kinds if "sync" not in kind]
        self._lied_from = None
        while_running = self._rng.randint(0, len(others))
        self.injuries += len(syncs) + len(others)
        self._counts.update([*syncs, *others])
        try:
            await self._burst()
            self._note_places()
            for kind in others[:while_running]:
                self._injure(kind, "")
            await self._look(is_running=True)
            await self._end(syncs[0] if syncs else "")
            for kind in others[while_running:]:
                self._injure(kind, ", while it was down")
            await self._start()
            await self._look(is_running=False)
        except TimeoutError as error:
            self._complain(f"it does not go on: {error}")
        self._take_faults()

    def _complain(self, what: str) -> None:
        self.complaints.append(f"{what}, after {'; '.join(self._done)}")

    def _take_faults(self) -> None:
        """Record the clients' faults. A session may be gone if the records that made it were lost and reported."""
        faults, self._load.ledger.faults = self._load.ledger.faults, []
        for fault in faults:
            if fault.endswith("the session is gone") and self._named():
                self._counts["sessions that were lost"] += 1
            else:
                self._complain(fault)

    # --- what happens

    async def _burst(self) -> None:
        """Publish until each publisher has all answers."""
        self._load.allow(BURST)
        await self._while_supervised(lambda: all(each.idle for each in self._load.publishers), "all acknowledgements")
        self._take_acked()

    def _take_acked(self) -> None:
        self._acked |= {_key(message) for message in self._load.ledger.acked}
        for done in (self._load.ledger.acked, self._load.ledger.sent, self._load.ledger.refused):
            done.clear()

    def _injure(self, kind: str, when: str) -> None:
        injury = chosen(kind, self._cluster.data, self._rng)
        self._done.append(f"{injury}{when}")
        injury.inflict()

    async def _end(self, kind: str) -> None:
        """End the store: by a failed sync, by a power cut on a lying disk, or by a signal."""
        if self._cluster.store.process.poll() is not None:
            self._note_end()
        elif kind == "failed sync":
            await self._fail_syncs()
        elif kind == "lying sync":
            await self._lie()
        elif self._rng.random() < 0.5:
            self._cluster.store.kill()
        else:
            await asyncio.to_thread(self._terminate)

    def _terminate(self) -> None:
        self._cluster.store.process.terminate()
        if self._cluster.store.process.wait(PATIENCE_S):
            self._note_end()

    async def _fail_syncs(self) -> None:
        """Make syncs fail, so that the store ends by itself; they work again for the next start."""
        self._done.append("failed sync")
        self._recorder.make_syncs(Syncs.FAIL)
        self._load.allow(BURST)
        await until(lambda: self._cluster.store.process.poll() is not None, "the store's end", PATIENCE_S)
        self._recorder.make_syncs(Syncs.AS_THEY_ARE)
        self._note_end()
        self._take_acked()  # with `async` some were; nothing of this start is synced
        self._note_places()

    async def _lie(self) -> None:
        """Make syncs lie, kill the store, and lose all or some of the bytes written meanwhile, or none."""
        end = max((stored.end for places in self._places.values() for stored in places), default=0)
        self._recorder.make_syncs(Syncs.LIE)
        await self._burst()
        self._note_places()
        self._cluster.store.kill()
        self._recorder.make_syncs(Syncs.AS_THEY_ARE)
        lost = lost_by_a_lie(self._cluster.data, end, self._rng) if self._rng.random() < 0.7 else []
        self._lied_from = end if lost else None
        for injury in lost:
            injury.inflict()
        self._done.append(f"lying sync, {len(lost)} sectors lost")

    async def _start(self) -> None:
        for attempt in range(STARTS):
            try:
                await asyncio.to_thread(self._cluster.store.start)
                return
            except RuntimeError as error:  # an index that proves damaged ends it as well
                if attempt + 1 == STARTS or self._cluster.store.process.returncode != AGAIN_AFTER_EXIT:
                    raise TimeoutError(str(error)[-1_500:]) from None
                self._note_end()

    async def _supervise(self) -> None:
        """Start the store again, as a supervisor does, if it ended with the documented exit code."""
        if self._cluster.store.process.poll() is not None:
            self._note_end()
            await self._start()

    def _note_end(self) -> None:
        status = self._cluster.store.process.returncode
        if status != AGAIN_AFTER_EXIT:
            self._complain(f"the store ended by itself with {status}")
        self._counts["ends by itself, with 74"] += 1

    async def _while_supervised(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            await self._supervise()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
            await asyncio.sleep(0.01)

    # --- the ledger

    def _note_places(self) -> None:
        """Note where each message is, from the files before they are injured."""
        for path in segment_paths(self._cluster.data / LOG):
            for stored in messages(int(path.stem), path.read_bytes()):
                self._places.setdefault(stored.key, set()).add(stored)

    def _named(self) -> list[Finding]:
        """All losses that the store has reported."""
        return [each for each in Quarantine(self._cluster.data / QUARANTINE).findings() if each.is_loss]

    async def _look(self, is_running: bool) -> None:
        """Read and check everything. `is_running`: the injury is new, and is reported only by the next start."""
        payloads = await self._read()
        wrong = [payload[:80] for payload in payloads if payload[len(_head(payload)) :].strip(b"\0")]
        if wrong:
            self._complain(f"delivered, but never published: {wrong[:3]}")
        missing = self._acked - {key_of(payload) for payload in payloads}
        if is_running:
            self._counts["missing from a store that runs"] += len(missing)
            return
        named = self._named()
        unnamed = {key for key in missing if not _is_in(self._places.get(key, ()), named)}
        unknowable = {key for key in unnamed if self._nothing_tells(key)}
        silent = sorted(unnamed - unknowable)
        self._counts["looks"] += 1
        self._counts["acknowledged, and looked for"] += len(self._acked)
        if silent:
            self._complain(f"{len(silent)} acknowledged messages are lost silently: {silent[:3]}")
        self._acked -= missing
        self._counts["lost, in a range that was named"] += len(missing - unnamed)
        self._counts["lost at the log's end, unsynced or with the marks"] += len(unknowable)
        lost = sum(lost_bytes(named).values())
        told = sum(self._cluster.store.metric(f'penstock_log_lost_bytes{{kind="{kind}"}}') for kind in LOST)
        if told != lost:
            self._complain(f"penstock_log_lost_bytes says {told}, the quarantine {lost}")

    def _nothing_tells(self, key: str) -> bool:
        """Whether a loss need not be reported: at the log's end, unsynced (`async` promises no more) or with injured
        marks.
        """
        places = self._places.get(key, ())
        lied = self._lied_from is not None and any(stored.start >= self._lied_from for stored in places)
        found = Quarantine(self._cluster.data / QUARANTINE).findings()
        torn = [each for each in found if each.kind in ("torn", "unsynced")]
        is_excused = self._flush == "async" or any(MARKS in what for what in self._done)
        return is_excused and (lied or _is_in(places, torn))

    async def _read(self) -> list[bytes]:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            await self._supervise()
            try:
                url = self._cluster.store_url.replace("tcp://", "penstock://")
                return await self._reader(url, tuple(topic for topic, _ in TOPICS))
            except (ConnectionError, TimeoutError) as error:  # it is about to end, and is started again
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"it cannot be read for {PATIENCE_S:.0f} s: {error}") from None
                await asyncio.sleep(0.05)


LOST = ("damaged", "missing", "unconfirmed")


def _key(message: SentMessage) -> str:
    return key_of(message.payload())


def _head(payload: bytes) -> bytes:
    """The part of a payload that identifies the message."""
    return b" ".join(payload.split(b" ", 4)[:4]) + b" "


def _is_in(places: Iterable[Stored], named: list[Finding]) -> bool:
    return any(each.start < stored.end and stored.start < each.end for stored in places for each in named)


def quiet() -> None:
    """Silence the store's client, whose warnings about killed stores are expected here."""
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
