"""The client for programs without asyncio: the same names, and every call waits.

>>> from penstock.sync import Client
>>> with Client(store_url) as client:
...     receipt = client.publish("line/7/temp", b"21.5", key="m-7")
...     client.get(receipt.message_id).payload
b'21.5'

The connection runs in a thread of its own, so it stays up whatever the program does meanwhile. All methods may be
called from any thread. After a fork (gunicorn's preload, multiprocessing) the child process gets a connection of its
own; operations begun before, such as a subscription, stay with the parent.
"""

from __future__ import annotations

import concurrent.futures
import ssl
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import starmap
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, Unpack

from penstock.sdk import client as aio
from penstock.sdk import loop_thread
from penstock.sdk.autobatch import AutoBatch
from penstock.sdk.batch import BatchOfOneTopic
from penstock.sdk.compression import Compression
from penstock.sdk.credentials import Password
from penstock.sdk.errors import BadMessage, ClientClosed, StoreRefused
from penstock.sdk.group_options import GroupOptions
from penstock.sdk.handover import Handover, Waiter
from penstock.sdk.loop_thread import LoopThread
from penstock.sdk.many import ToPublish
from penstock.sdk.message import Batch, Message
from penstock.sdk.message import Receipt as AsyncReceipt
from penstock.sdk.outgoing import PublishLater
from penstock.sdk.positions import Moment, Position
from penstock.sdk.reading import Reading as AsyncReading
from penstock.sdk.rights import UserRights
from penstock.sdk.subscription import PREFETCH
from penstock.sdk.subscription import Subscription as AsyncSubscription
from penstock.sdk.sync_group import Deliveries as Deliveries
from penstock.sdk.sync_group import Delivery as Delivery
from penstock.sdk.sync_group import Subscription as Subscription

UNFIT = (
    BadMessage,
    StoreRefused,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
)  # errors of a single message
MOST_SENT = 10_000  # messages without a receipt; send() waits for fewer


class Client:
    """As penstock.Client, but blocking. Use it inside `with`, or call connect() and close(); the first call connects by
    itself.
    """

    def __init__(
        self,
        url: str = "penstock://localhost:7700",
        *,
        token: str = "",
        user: str = "",
        password: Password = "",
        namespace: str = "",
        tls: ssl.SSLContext | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        timeout_s: float = 30.0,
        autobatch: bool | AutoBatch = False,
        compress: bool | Compression = True,
    ) -> None:
        """As penstock.Client. Raises AddressError."""
        self._new_client = partial(
            aio.Client,
            url,
            token=token,
            user=user,
            password=password,
            namespace=namespace,
            tls=tls,
            cert=cert,
            key=key,
            timeout_s=timeout_s,
            autobatch=autobatch,
            compress=compress,
        )
        self._client = self._new_client()
        self._thread: LoopThread | None = None
        self._is_closed = False  # by close(); from then on only connect() connects
        self._may_send = threading.BoundedSemaphore(MOST_SENT)

    # --- connecting and closing

    def connect(self) -> None:
        """Raises CannotConnect."""
        self._is_closed = False
        _ = self._opened

    def close(self) -> None:
        """Wait until the store has answered everything sent, then disconnect."""
        self._is_closed = True
        thread, self._thread = self._thread, None
        if thread is not None and not thread.is_of_parent:
            try:
                thread.call(self._client.close())
            finally:
                thread.stop()
                self._handover.closed()

    @property
    def _opened(self) -> LoopThread:
        """The client's thread; with the first call a new one, with a new connection, in a forked process too. Raises
        ClientClosed, CannotConnect.
        """
        thread = self._thread
        if thread is None or thread.is_of_parent:
            with loop_thread.one_at_a_time:
                if self._is_closed:
                    raise ClientClosed
                if self._thread is thread:
                    if thread is not None:
                        self._client = self._new_client()
                        self._may_send = threading.BoundedSemaphore(MOST_SENT)
                    self._thread = self._connected()
            return self._opened
        return thread

    def _connected(self) -> LoopThread:
        thread = LoopThread()
        self._handover = Handover(thread, self._client)
        try:
            thread.call(self._client.connect())
        except BaseException:
            thread.stop()
            raise
        return thread

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    # --- publishing

    def publish(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishLater]) -> Receipt:
        """Store a message, and wait for the receipt; see penstock.Client.publish()."""
        thread = self._opened
        waiter = Waiter()
        self._handover.hand(self._client.message(topic, payload, options), waiter)
        return Receipt.of(thread, waiter.wait())

    def send(
        self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishLater]
    ) -> concurrent.futures.Future[Receipt]:
        """As publish(), without waiting: the future gets the receipt, or the error.

        Waits only while 10,000 messages have no receipt.
        """
        thread, may_send = self._opened, self._may_send
        may_send.acquire()
        future: concurrent.futures.Future[Receipt] = concurrent.futures.Future()
        try:
            message = self._client.message(topic, payload, options)
            self._handover.hand(message, _ReceiptLater(thread, future))
        except UNFIT as error:
            future.set_exception(error)
        except BaseException:
            may_send.release()
            raise
        future.add_done_callback(lambda _: may_send.release())
        return future

    def publish_many(self, messages: Iterable[ToPublish]) -> list[Receipt]:
        """Store messages of any topics, and wait for their receipts; see penstock.Client.publish_many()."""
        return list(starmap(Receipt, self._opened.call(self._client.publish_many(messages))))

    def batch(self) -> SyncBatch:
        """Messages of one topic that are stored together, or not at all, when the `with` block ends."""
        return SyncBatch(self._opened, self._client.batch())

    def delayed(self, topic_filter: str = "#", *, key: str | None = None) -> list[Pending]:
        """Delayed messages that are not published yet; see penstock.Client.delayed()."""
        thread = self._opened

        async def found() -> list[Pending]:
            pending = self._client.delayed(topic_filter, key=key)
            return [Pending(each.topic, each.key, Receipt.of(thread, each.receipt)) async for each in pending]

        return thread.call(found())

    # --- reading

    def read(
        self, topic_filter: str, *, start: Position = "earliest", stop: Position | None = "now", tag: str = ""
    ) -> Reading:
        """Stored messages of a topic, a filter, or everything (`#`); see penstock.Client.read()."""
        thread = self._opened

        async def begin() -> AsyncReading:
            return self._client.read(topic_filter, start=start, stop=stop, tag=tag)

        return Reading(thread, thread.call(begin()))

    # --- consuming

    def subscribe(
        self,
        topic_filter: str,
        *,
        group: str,
        start: Position | None = None,
        prefetch: int = PREFETCH,
        tag: str | None = None,
        **options: Unpack[GroupOptions],
    ) -> Subscription:
        """Join a consumer group; see penstock.Client.subscribe().

        for message in client.subscribe("line/+/temp", group="billing"):
            message.ack()
        """
        thread = self._opened

        async def begin() -> AsyncSubscription:
            return self._client.subscribe(topic_filter, group=group, start=start, prefetch=prefetch, tag=tag, **options)

        return Subscription(thread, thread.call(begin()))

    def find(
        self, key: str, *, topic: str = "", since: Moment = "earliest", until: Moment = "now", limit: int = 100
    ) -> list[Message]:
        """The newest `limit` messages with a key, newest first; see penstock.Client.find()."""
        return self._opened.call(self._client.find(key, topic=topic, since=since, until=until, limit=limit))

    def rights(self) -> UserRights:
        """Who this client is, and what it may do besides; see penstock.Client.rights()."""
        return self._opened.call(self._client.rights())

    def permitted(self, action: str, topics: Sequence[str]) -> list[bool]:
        """Whether this client may do `action`, for each topic or filter; see penstock.Client.permitted()."""
        return self._opened.call(self._client.permitted(action, topics))

    def get(self, message_id: str) -> Message:
        """The message that a receipt or a message names; see penstock.Client.get()."""
        return self._opened.call(self._client.get(message_id))


class Receipt(AsyncReceipt):
    """As penstock.sdk.message.Receipt; cancel() waits."""

    _delayed: tuple[LoopThread, AsyncReceipt] | None = None

    @classmethod
    def of(cls, thread: LoopThread, receipt: AsyncReceipt) -> Receipt:
        made = cls(*receipt)
        if receipt.due_at is not None:
            made._delayed = thread, receipt
        return made

    @property
    def due_at(self) -> datetime | None:
        return self._delayed[1].due_at if self._delayed is not None else None

    def cancel(self) -> bool:  # type: ignore[override]
        """Cancel a delayed message. False: too late, it is published (or was cancelled before)."""
        if self._delayed is None:
            return False
        thread, receipt = self._delayed
        return thread.call(receipt.cancel())


class _ReceiptLater:
    """Passes a receipt to a future of Client.send()."""

    __slots__ = ("_future", "_thread")

    def __init__(self, thread: LoopThread, future: concurrent.futures.Future[Receipt]) -> None:
        self._thread = thread
        self._future = future

    @property
    def is_wanted(self) -> bool:
        return not self._future.cancelled()

    def done(self, outcome: AsyncReceipt | Exception) -> None:
        if not self._future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(Receipt.of(self._thread, outcome))


class Pending(NamedTuple):
    """A delayed message that is not published yet."""

    topic: str
    key: str | None
    receipt: Receipt

    @property
    def due_at(self) -> datetime:
        """When it is published, in UTC."""
        assert self.receipt.due_at is not None
        return self.receipt.due_at

    def cancel(self) -> bool:
        """Cancel the message. False: too late, it is published (or was cancelled before)."""
        return self.receipt.cancel()


class SyncBatch:
    """The result of Client.batch()."""

    def __init__(self, thread: LoopThread, batch: BatchOfOneTopic) -> None:
        self._thread = thread
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def receipts(self) -> list[Receipt]:
        """One for each message, in their order, once the block has ended."""
        return [Receipt.of(self._thread, receipt) for receipt in self._batch.receipts]

    def publish(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishLater]) -> None:
        """Add a message. Raises BadMessage; BatchRefused for another topic or `wait` than the first one's."""
        self._batch.publish(topic, payload, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.call(self._batch.__aexit__(kind, error, traceback))


class Reading:
    """The result of Client.read(): iterate over it, or over its batches(), once."""

    def __init__(self, thread: LoopThread, reading: AsyncReading) -> None:
        self._thread = thread
        self._reading = reading

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[Batch]:
        """The same messages as they come from the store, some thousand at a time."""
        return self._thread.iterate(self._reading.batches())
