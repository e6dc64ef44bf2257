"""Makes recordings, makes images of power cuts from them, and judges each image."""

from __future__ import annotations

import asyncio
import filecmp
import logging
import os
import random
import shlex
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from loadtest.errors import LoadTestError
from loadtest.power.judge import ImageJudge, clear
from loadtest.power.recording import Event, Recorder, Syncs, read_recording
from loadtest.power.traffic import Account, Consumers, record
from loadtest.power.truth import Truth, certain_until
from loadtest.power.volume import Volume

RECORD_S = 5.0
IMAGES_OF_A_RECORDING = 1_000
IMAGES_OF_A_TASK = 25
TASKS_OF_A_PROCESS = 8
IMAGE_TIMEOUT_S = 60
MEMORY = Path("/dev/shm")
ACCOUNT = "account.json"
AS_IT_WAS = -1
"""The number of the image with everything that was done."""


class PowerOptions(NamedTuple):
    """`recording`: a kept one, instead of new ones; `image`: only this one of it."""

    images: int
    seed: int
    flush: str
    recording: Path | None = None
    image: int | None = None
    lies: bool = False  # syncs of the log do nothing and report success: a test of the test


class BrokenPromise(msgspec.Struct):
    """An image that breaks a promise."""

    recording: str
    image: int
    event: int
    kept: str
    complaints: list[str]


class Power(msgspec.Struct):
    """The results of a run."""

    command: str
    flush: str
    seed: int
    images: int = 0
    recordings: int = 0
    events: int = 0
    syncs: int = 0
    lasted_s: float = 0.0
    counts: dict[str, int] = {}
    faults: list[BrokenPromise] = []

    def verdict(self) -> str:
        """A few lines for people."""
        lines = [
            f"{self.images} images of {self.recordings} recordings ({self.events} calls, {self.syncs} syncs), flush "
            f"{self.flush}, {self.lasted_s:.0f} s",
            *(f"    {number:12,}  {name}" for name, number in sorted(self.counts.items())),
        ]
        for fault in self.faults[:10]:
            lines.append(f"image {fault.image}, after call {fault.event}, {fault.kept}")
            lines += [f"    {complaint}" for complaint in fault.complaints]
            lines.append(f"    again: {self.again(fault)}")
        broken = f"broken: {len(self.faults)} images break a promise"
        return "\n".join([*lines, broken if self.faults else "kept: every promise"])

    def again(self, fault: BrokenPromise) -> str:
        """The command that makes and judges an image again."""
        command = ["penstock", "chaos", "--power", "--flush", self.flush, "--seed", str(self.seed)]
        return shlex.join([*command, "--recording", fault.recording, "--image", str(fault.image)])


def power(
    options: PowerOptions, consumers: Consumers, say: Callable[[str], None], progress: Callable[[str, float], None]
) -> Power:
    """Run everything. Raises LoadTestError. Recordings that are unusable, or whose images break a promise, are kept."""
    command = ["penstock", "chaos", "--power", "--flush", options.flush, "--seed", str(options.seed)]
    found = Power(shlex.join([*command, "--images", str(options.images)]), options.flush, options.seed)
    begun_s = time.monotonic()
    if options.recording is not None:
        numbers = range(options.images) if options.image is None else [options.image]
        _judge_all(options.recording, options, numbers, found, progress)
    for start in range(0, options.images if options.recording is None else 0, IMAGES_OF_A_RECORDING):
        folder = new_folder()
        before = len(found.faults)
        progress("recording", start / options.images)
        make_recording(folder, options, options.seed + start, consumers)
        numbers = range(start, min(start + IMAGES_OF_A_RECORDING, options.images))
        _judge_all(folder, options, numbers, found, progress)
        if len(found.faults) == before:
            shutil.rmtree(folder)
        say(f"{found.images} images, {len(found.faults)} of them break a promise")
    found.lasted_s = round(time.monotonic() - begun_s, 1)
    return found


def new_folder() -> Path:
    """A new folder, in memory if possible: there are many images, and they do not depend on a real disk."""
    in_memory = not os.environ.get("TMPDIR") and os.access(MEMORY, os.W_OK)
    return Path(tempfile.mkdtemp(prefix="penstock-power-", dir=MEMORY if in_memory else None))


def make_recording(folder: Path, options: PowerOptions, seed: int, consumers: Consumers) -> None:
    """Record a store under load. Raises LoadTestError, also if a change escaped the recording."""
    folder = folder.resolve()
    data = folder / "data"
    data.mkdir()
    recorder = Recorder(folder, data)
    recorder.make_syncs(Syncs.LIE if options.lies else Syncs.SLOW)
    account = asyncio.run(record(folder, recorder, data, options.flush, seed, RECORD_S, consumers))
    (folder / ACCOUNT).write_bytes(msgspec.json.encode(account))
    volume = Volume()
    for event in read_recording(recorder.file):
        volume.follow(event)
    whole = folder / "whole"
    volume.write_whole(whole)
    if where := difference(data, whole):
        raise LoadTestError(f"the recording does not lead to what the store left: {where}; see {folder}")
    shutil.rmtree(whole)
    shutil.rmtree(data)


def difference(one: Path, other: Path) -> str:
    """The first difference of two folders, sockets apart; empty if there is none."""
    names = {path.relative_to(one) for path in one.rglob("*") if not path.is_socket()}
    others = {path.relative_to(other) for path in other.rglob("*")}
    if names != others:
        return f"{sorted(map(str, names ^ others))[:5]} is in one of them only"
    for name in sorted(names):
        if (one / name).is_file() and not filecmp.cmp(one / name, other / name, shallow=False):
            return f"the content of {name}"
    return ""


def _judge_all(
    folder: Path,
    options: PowerOptions,
    numbers: range | list[int],
    found: Power,
    progress: Callable[[str, float], None],
) -> None:
    """Judge images in several processes, a few hundred in each: a crash in RocksDB ends only one of them."""
    events = read_recording(folder / "record")
    found.recordings += 1
    found.events += len(events)
    found.syncs += sum(event.kind == "e" for event in events)
    tasks = [list(numbers[at : at + IMAGES_OF_A_TASK]) for at in range(0, len(numbers), IMAGES_OF_A_TASK)]
    processes = min(8, os.cpu_count() or 1)
    for at in range(0, len(tasks), processes * TASKS_OF_A_PROCESS):
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            some = tasks[at : at + processes * TASKS_OF_A_PROCESS]
            for task, future in [(task, pool.submit(judge_some, folder, options.seed, task)) for task in some]:
                _add(found, folder, task, future)
                progress(f"{found.images} images", min(1.0, found.images / max(1, options.images)))


def _add(found: Power, folder: Path, task: list[int], future: Future[tuple[list[BrokenPromise], Counter[str]]]) -> None:
    try:
        faults, counts = future.result(IMAGE_TIMEOUT_S * IMAGES_OF_A_TASK)
    except BrokenProcessPool:
        lost = f"the process that judged one of images {task[0]} to {task[-1]} was killed"
        faults, counts = [BrokenPromise(str(folder), task[0], 0, "", [lost])], Counter()
    found.images += len(task)
    found.faults += faults
    found.counts = dict(Counter(found.counts) + counts)


def judge_some(folder: Path, seed: int, numbers: list[int]) -> tuple[list[BrokenPromise], Counter[str]]:
    """Make and judge these images of a recording."""
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    logging.getLogger("penstock").propagate = False
    signal.signal(signal.SIGALRM, _too_long)
    events = read_recording(folder / "record")
    truth = Truth(events, msgspec.json.decode((folder / ACCOUNT).read_bytes(), type=Account))
    judge = ImageJudge(truth)
    volume = Volume()
    at = 0
    faults: list[BrokenPromise] = []
    counts: Counter[str] = Counter()
    chosen = {number: random.Random(f"{seed} {number}") for number in numbers}
    moments = {number: moment(events, rng) for number, rng in chosen.items()}
    for number in sorted(numbers, key=lambda number: moments[number]):
        while at < moments[number]:
            volume.follow(events[at])
            at += 1
        image = folder / f"image-{number}"
        kept = volume.write_image(image, chosen[number])
        signal.alarm(IMAGE_TIMEOUT_S)
        try:
            verdict = judge.judge(image, at, certain_until(volume), twice=chosen[number].random() < 0.25)
        except Exception:  # any error is a finding
            faults.append(
                BrokenPromise(str(folder), number, at, kept, [f"it cannot be read: {traceback.format_exc()}"])
            )
            clear(image)
            continue
        finally:
            signal.alarm(0)
        counts += verdict.counts
        if verdict.complaints:
            faults.append(BrokenPromise(str(folder), number, at, kept, verdict.complaints))
        clear(image)  # the same seed makes it again
    return faults, counts


def moment(events: list[Event], rng: random.Random) -> int:
    """The number of calls before the power cut: around a sync or a change of names, or anywhere."""
    kinds = rng.choice(("e", "e", "rlumdTt", ""))
    near = [event.number for event in events if event.kind in kinds]
    if not near:
        return rng.randrange(len(events) + 1)
    return min(len(events), rng.choice(near) + rng.choice((0, 0, 1, 1, rng.randrange(8))))


def _too_long(number: int, frame: FrameType | None) -> Any:
    raise TimeoutError(f"not judged within {IMAGE_TIMEOUT_S} s")
