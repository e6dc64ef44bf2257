"""The client for programs without asyncio: the same names, and every call waits.

>>> from penstock.sync import Client
>>> with Client(store_url) as client:
...     receipt = client.publish("line/7/temp", b"21.5", key="m-7")
...     client.get(receipt.message_id).payload
b'21.5'

A thread of its own looks after its connection, which so stays up whatever the program does meanwhile. All methods may
be called from any thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ssl
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from penstock.sdk import client as aio
from penstock.sdk.autobatch import AutoBatch
from penstock.sdk.batch import BatchOfOneTopic
from penstock.sdk.compression import Compression
from penstock.sdk.errors import ClientClosed
from penstock.sdk.message import Batch, Message, Receipt
from penstock.sdk.outgoing import PublishOptions
from penstock.sdk.positions import Moment, Position
from penstock.sdk.reading import Reading as AsyncReading

T = TypeVar("T")

MOST_SENT = 10_000  # messages without a receipt; with more, send() waits


class Client:
    """As penstock.Client, blocking. Use it inside `with`, or call connect() and close()."""

    def __init__(
        self,
        url: str = "penstock://localhost:7700",
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
        autobatch: bool | AutoBatch = False,
        compress: bool | Compression = True,
    ) -> None:
        """As penstock.Client. Raises AddressError."""
        self._client = aio.Client(
            url, token=token, tls=tls, timeout_s=timeout_s, autobatch=autobatch, compress=compress
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._may_send = threading.BoundedSemaphore(MOST_SENT)

    # --- coming and going

    def connect(self) -> None:
        """Raises CannotConnect."""
        if self._loop is not None:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-client", daemon=True)
        self._thread.start()
        try:
            self._call(self._client.connect())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Wait until what was sent is answered, then leave."""
        if self._loop is not None:
            try:
                self._call(self._client.close())
            finally:
                self._stop()

    def _stop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._loop is None:
            work.close()
            raise ClientClosed
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._start(work)
        try:
            return future.result()
        except BaseException:  # Ctrl-C, for one: nobody waits for it any more
            future.cancel()
            raise

    # --- publishing

    def publish(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishOptions]) -> Receipt:
        """Store a message, and wait for the receipt; see penstock.Client.publish()."""
        return self._call(self._client.publish(topic, payload, **options))

    def send(
        self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishOptions]
    ) -> concurrent.futures.Future[Receipt]:
        """As publish(), without waiting: the receipt, or the error, comes with the future.

        Waits all the same while 10,000 messages have no receipt.
        """
        self._may_send.acquire()
        try:
            future = self._start(self._client.publish(topic, payload, **options))
        except BaseException:
            self._may_send.release()
            raise
        future.add_done_callback(lambda _: self._may_send.release())
        return future

    def batch(self) -> SyncBatch:
        """Messages of one topic that are stored together, or not at all, when the `with` block ends."""
        return SyncBatch(self, self._client.batch())

    # --- reading

    def read(
        self, topic_filter: str, *, start: Position = "earliest", stop: Position | None = "now", tag: str = ""
    ) -> Reading:
        """What was stored of a topic, a filter, or everything (`#`); see penstock.Client.read()."""

        async def begin() -> AsyncReading:
            return self._client.read(topic_filter, start=start, stop=stop, tag=tag)

        return Reading(self, self._call(begin()))

    def find(
        self, key: str, *, topic: str = "", since: Moment = "earliest", until: Moment = "now", limit: int = 100
    ) -> list[Message]:
        """The newest `limit` messages with a key, newest first; see penstock.Client.find()."""
        return self._call(self._client.find(key, topic=topic, since=since, until=until, limit=limit))

    def get(self, message_id: str) -> Message:
        """The message that a receipt or a message names; see penstock.Client.get()."""
        return self._call(self._client.get(message_id))


class SyncBatch:
    """What Client.batch() gives."""

    def __init__(self, client: Client, batch: BatchOfOneTopic) -> None:
        self._client = client
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def receipts(self) -> list[Receipt]:
        """One for each message, in their order, once the block has ended."""
        return self._batch.receipts

    def publish(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishOptions]) -> None:
        """Add a message. Raises BadMessage; BatchRefused for another topic or `wait` than the first one's."""
        self._batch.publish(topic, payload, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client._call(self._batch.__aexit__(kind, error, traceback))


class Reading:
    """What Client.read() gives: iterate over it, or over its batches(). To be iterated over once."""

    def __init__(self, client: Client, reading: AsyncReading) -> None:
        self._client = client
        self._reading = reading

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[Batch]:
        """The same messages as they come from the store, some thousand at a time."""
        batches = self._reading.batches()
        try:
            while (batch := self._client._call(_following(batches))) is not None:
                yield batch
        finally:
            self._client._call(_closed(batches))


async def _following(batches: AsyncGenerator[Batch, None]) -> Batch | None:
    return await anext(batches, None)


async def _closed(batches: AsyncGenerator[Batch, None]) -> None:
    await batches.aclose()
