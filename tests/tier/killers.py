"""Kill a process at a moment of its work on a table: at a call that changes a folder, or at a request to a bucket."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.support.server_process import ROOT
from tests.tier.places import TablePlace, s3_options
from tests.tier.storage_wire import Mood, StorageWire

PATIENCE_S = 120


class Moment(NamedTuple):
    """The step-th one before or after a call or a request; of those that change `path`, if it is given."""

    step: int
    path: str = ""


class Killer(Protocol):
    """Runs processes that write to `place`."""

    place: TablePlace

    def run(self, command: list[str], moment: Moment | None) -> bool:
        """Whether it was killed at that moment. Otherwise it has done all it had to do."""
        ...


class FolderKiller:
    """Preloads killed_at_call.c, which is compiled in a folder."""

    def __init__(self, folder: Path) -> None:
        self.place = TablePlace(str(folder / "fleet"), {})
        self._library = folder / "killed_at_call.so"
        source = Path(__file__).with_name("killed_at_call.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", self._library, source, "-ldl"], check=True)

    def run(self, command: list[str], moment: Moment | None) -> bool:
        environment = {}
        if moment is not None:
            environment = {
                "LD_PRELOAD": str(self._library),
                "KILL_BELOW": self.place.url,
                "KILL_AT": str(moment.step),
                "KILL_FOR": moment.path,
            }
        return _was_killed(_started(command, environment))


class BucketKiller:
    """Kills at requests that go through a StorageWire."""

    def __init__(self, endpoint: str, url: str) -> None:
        self._wire = _KillingWire(endpoint)
        self.place = TablePlace(url, s3_options(self._wire.endpoint))

    def close(self) -> None:
        self._wire.close()

    def run(self, command: list[str], moment: Moment | None) -> bool:
        process = _started(command, {})  # it asks for nothing before it has begun
        self._wire.kill_at(moment, process.kill)
        try:
            return _was_killed(process)
        finally:
            self._wire.kill_at(None, process.kill)


class _KillingWire(StorageWire):
    def __init__(self, endpoint: str) -> None:
        self._moment: Moment | None = None
        self._kill: Callable[[], None]
        super().__init__(endpoint, seed=0)

    def kill_at(self, moment: Moment | None, kill: Callable[[], None]) -> None:
        """`moment` is as of now."""
        self._moment, self._kill = moment, kill

    async def _answer(self, mood: Mood, head: bytes, body: bytes) -> bytes:
        self._step(head)
        data = await super()._answer(mood, head, body)
        self._step(head)
        return data

    def _step(self, head: bytes) -> None:
        """Raises OSError at the moment: a request that was not done yet is not done any more."""
        request = head.partition(b"\r\n")[0].decode()
        if self._moment is None or (self._moment.path and not (request[:4] == "PUT " and self._moment.path in request)):
            return
        if self._moment.step == 0:
            self._kill()
            raise ConnectionAbortedError
        self._moment = self._moment._replace(step=self._moment.step - 1)


def _started(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


def _was_killed(process: "subprocess.Popen[str]") -> bool:
    try:
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode != 0
