"""A worker process as its flow has it: the calls that it has in hand, and which one is to blame when it ends."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

import msgspec

from penstock.flows.errors import SinkAway, SinkFailed
from penstock.flows.functions.frames import Call, CallAnswer, FrameCutter, Ready, decode_answer, framed

START_S: Final = 60.0  # for the function's modules to be imported
LOOK_S: Final = 0.05  # between two looks at how long calls take
CLOSE_S: Final = 5.0
READ_BYTES: Final = 1 << 16
WORKER: Final = "penstock.flows.functions.worker"


class WorkerGone(Exception):
    """The worker ended. This call is not to blame, or it is not known whether it is (`is_suspect`)."""

    def __init__(self, is_suspect: bool) -> None:
        super().__init__("the worker process ended")
        self.is_suspect = is_suspect


class CallInHand:
    """A call without an answer."""

    __slots__ = ("answer", "began_s", "call")

    def __init__(self, call: Call, began_s: float) -> None:
        self.call, self.began_s = call, began_s
        self.answer: asyncio.Future[CallAnswer] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())  # somebody may not ask


class FunctionProcess:
    """Owner of one worker process. It ends with the first call that takes too long."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        """`reader`: of answers. `writers`: the one for calls, and the other direction of `reader`."""
        self.is_async = False
        self._is_over = asyncio.Event()  # no call has its answer any more
        self._process, self._reader, self._writers = process, reader, writers
        self._writer, _ = writers
        self._cutter, self._is_garbled = FrameCutter(), False
        self._unsent: list[bytes] = []  # calls of this turn of the loop
        self._limit_s = 0.0
        self._calls: dict[int, CallInHand] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def started(cls, module: str, name: str, limit_s: float) -> FunctionProcess:
        """`limit_s`: for each call. Raises SinkAway."""
        with ExitStack() as stack:  # two lines: answers can be read to the end where calls cannot be written any more
            (calls, its_calls), (answers, its_answers) = socket.socketpair(), socket.socketpair()
            for its in (its_calls, its_answers):
                stack.enter_context(its)
            descriptors = its_calls.fileno(), its_answers.fileno()
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", WORKER, module, name, *map(str, descriptors)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=2,  # what the function prints is in the log
                    pass_fds=descriptors,
                    start_new_session=True,  # an interrupt in a terminal is for the flow only
                    env=os.environ | {"PYTHONUNBUFFERED": "1"},
                )
            except OSError as error:
                calls.close()
                answers.close()
                raise SinkAway(f"no worker process can be started: {error}") from None
        _, writer = await asyncio.open_connection(sock=calls)
        reader, other = await asyncio.open_connection(sock=answers)
        found = cls(process, reader, (writer, other))
        try:
            async with asyncio.timeout(START_S):
                some = await found._some()
        except TimeoutError:
            await found.close()
            raise SinkAway(f"{module} is not imported after {START_S:g} s") from None
        except BaseException:
            await found.close()
            raise
        if not some or not isinstance(first := some[0], Ready):
            await found.close()
            raise SinkAway(f"{module}:{name} cannot be used; see the worker's words in the log, and mend it")
        found.is_async, found._limit_s = first.is_async, limit_s
        found._tasks = [asyncio.create_task(found._read()), asyncio.create_task(found._look())]
        return found

    @property
    def in_hand(self) -> int:
        return len(self._calls)

    @property
    def is_gone(self) -> bool:
        return self._is_over.is_set()

    async def room(self) -> None:
        """Wait while its socket takes nothing; if that is closed, until it is known which call is to blame."""
        if not self._is_closing:
            with suppress(OSError):
                await self._writer.drain()
        if self._is_closing:
            await self._is_over.wait()

    @property
    def _is_closing(self) -> bool:
        return self._writer.transport.is_closing()

    def call(self, call: Call) -> asyncio.Future[CallAnswer]:
        """The future raises SinkFailed (this call is to blame that the worker ended), or WorkerGone. Raises WorkerGone,
        OverflowError (it is too large)."""
        if self.is_gone or self._is_closing:
            raise WorkerGone(False)
        data = framed(call)
        in_hand = CallInHand(call, asyncio.get_running_loop().time())
        self._calls[call.number] = in_hand
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(data)
        return in_hand.answer

    def _send(self) -> None:
        self._writer.write(b"".join(self._unsent))
        self._unsent.clear()

    async def _some(self) -> list[Ready | CallAnswer]:
        """What it says, at least one word. Empty: it is gone, or says what it should not."""
        found: list[Ready | CallAnswer] = []
        try:
            while not found and not self._is_garbled and (data := await self._reader.read(READ_BYTES)):
                for frame in self._cutter.frames(data):
                    found.append(decode_answer(frame))
        except OSError:
            pass
        except (OverflowError, msgspec.DecodeError, UnicodeDecodeError):
            self._is_garbled = True
        return found

    async def _read(self) -> None:
        while some := await self._some():
            for answer in some:
                if not isinstance(answer, CallAnswer):
                    self._is_garbled = True
                    break
                in_hand = self._calls.pop(answer.number, None)
                if in_hand is not None and not in_hand.answer.done():
                    in_hand.answer.set_result(answer)
            if not self.is_async and self._calls:  # the next one begins
                next(iter(self._calls.values())).began_s = asyncio.get_running_loop().time()
        await self._ended()

    async def _look(self) -> None:
        """End the worker when a call takes too long."""
        late: list[CallInHand] = []
        while not late:
            await asyncio.sleep(LOOK_S)
            since_s = asyncio.get_running_loop().time() - self._limit_s
            late = [in_hand for in_hand in self._begun() if in_hand.began_s < since_s]
        self._gone(late, f"the function has not returned after {self._limit_s:g} s; its process was killed")
        self._kill()

    def _begun(self) -> list[CallInHand]:
        calls = list(self._calls.values())
        return calls if self.is_async else calls[:1]

    async def _ended(self) -> None:
        """It ended by itself, or somebody ended it."""
        if not self.is_gone:
            self._kill()  # in case that it only closed its socket
            code = await self._process.wait()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            self._gone(self._begun(), f"the process of the function ended {how}")

    def _gone(self, to_blame: Sequence[CallInHand], why: str = "") -> None:
        """`to_blame`: a call, which fails, or calls of which one may be the cause."""
        self._is_over.set()
        calls, self._calls = self._calls, {}
        for in_hand in calls.values():
            if not in_hand.answer.done():
                is_suspect = in_hand in to_blame
                is_known = is_suspect and len(to_blame) == 1
                in_hand.answer.set_exception(SinkFailed(why) if is_known else WorkerGone(is_suspect))

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End it, with what it is at."""
        self._gone(())
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()
        self._kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._process.wait()
