"""The client of a store for asyncio programs."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar, Unpack

from penstock.sdk import current_span
from penstock.sdk.address import Address
from penstock.sdk.autobatch import AutoBatch, Gatherer
from penstock.sdk.batch import BatchOfOneTopic
from penstock.sdk.compression import Compression, chosen
from penstock.sdk.connecting import ClientConnection
from penstock.sdk.credentials import ClientCredentials, Password
from penstock.sdk.errors import BadMessageId, ClientClosed, NotFound, Overloaded, StoreRefused
from penstock.sdk.filters import LiveOnlyTopics, matches_any
from penstock.sdk.group_options import GroupOptions, group_name, group_settings, group_start, group_tag, prefetch_of
from penstock.sdk.link import ClientLink
from penstock.sdk.many import Packer, ToPublish, published
from penstock.sdk.message import DelayedReceipt, Message, Pending, Receipt
from penstock.sdk.message_id import parse_message_id
from penstock.sdk.outgoing import Outgoing, PublishLater, PublishOptions, due, outgoing
from penstock.sdk.positions import Moment, Position, moment
from penstock.sdk.publishing import PACK_BYTES, Done, Entry, Outbox, Together, batch_bytes, pack_changes
from penstock.sdk.reading import NO_END, Reading
from penstock.sdk.rights import UserRights, permitted, rights
from penstock.sdk.subscription import PREFETCH, Subscription, WantedMessages
from store.namespaces import Namespace
from store.records.record_bytes import walk
from store.wire import messages as wire
from store.wire.client.requests import Outcome
from store.wire.frames import Frame
from store.wire.messages import FailureCode

MOST_DELAY_S = 0xFFFFFFFF  # while no store says how much it takes
DELAYED_PER_PAGE = 1_000

T = TypeVar("T")


class Client(ClientConnection):
    """A connection to a store. If it is lost it is made again; what has no answer is sent again, and stored once.

    Use it inside `async with`, or call connect() and close(); the first publish() or search connects by itself. All
    calls are made from one event loop. A forked process, and the next event loop, connect anew.

    >>> import asyncio
    >>> from penstock import Client
    >>> async def example(url):
    ...     async with Client(url) as client:
    ...         receipt = await client.publish("line/7/temp", b"21.5", key="m-7", headers={"unit": "C"})
    ...         found = await client.get(receipt.message_id)
    ...         return found.topic, found.payload, found.headers
    >>> asyncio.run(example(store_url))
    ('line/7/temp', b'21.5', {'unit': 'C'})
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
        """`url`: penstock://HOST:PORT, penstocks://HOST:PORT (TLS) or unix:///PATH; raises AddressError.

        `token`: what the store wants to be shown (its setting wire.client_token, or wire.token). `user` and
        `password`: who this is, where the store judges users; a JSON Web Token goes into `password`, which may be a
        function that is asked for each connection. `namespace`: whose topics, groups and messages are meant, and the
        only ones that can be had; empty: the user's or the token's, else the default one; *: all of them, under the
        names that the store's log has. `tls`: whom to trust, for penstocks:// (default: the machine's
        certificate authorities). `cert` and `key`: PEM files of the certificate that is shown, read for each
        connection; raises BadOption. `timeout_s`: how long connect() and each request wait for an answer.
        `autobatch`: hold messages back for up to 10 ms, so that those of a topic are sent 32 KB at a time; an
        AutoBatch for other bounds. `compress`: payloads above 4 KB are stored compressed (zstd), and every reader
        gets them as they were; a Compression for another bound or level.
        """
        address = Address.parse(url)
        certificate, private_key = (Path(file) if file is not None else None for file in (cert, key))
        credentials = ClientCredentials(token, user, password, tls, certificate, private_key, namespace)
        credentials.check()
        self._compression = chosen(compress)
        self._autobatch = AutoBatch() if autobatch is True else autobatch or None
        self.expects_next = True  # a program that has a receipt sends its next message in the next turn of the loop
        self._subscriptions = 0
        super().__init__(address, credentials, timeout_s)

    def _begin(self) -> None:
        super()._begin()
        self._gatherer = Gatherer(self._autobatch) if self._autobatch is not None else None
        self._is_ticking = False
        self._live_only = LiveOnlyTopics()

    def _new_outbox(self, link: ClientLink) -> Outbox:
        return Outbox(link.requests, lambda: link.place, link.wake, self._cancel, self._answered)

    @property
    def _names(self) -> Namespace:
        """How the log has what this client names."""
        return self._opened.place.names

    # --- publishing

    async def publish(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishLater]) -> Receipt:
        """Store a message, and wait for the receipt. What it may have besides a payload: see PublishLater.

        With `delay` it is published so much later; receipt.cancel() takes it back, and says whether that was in time.

        Raises BadMessage, StoreRefused (a full disk, a message larger than the store's frames), or TimedOut: then it
        may be stored or not.
        """
        if not self._is_ready:
            await self._first_use()
        message = self.message(topic, payload, options)
        if not self.room.has(len(message.record)):
            await self.room.wait_for(len(message.record))
        return await self._send(message)

    def send(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishLater]) -> asyncio.Future[Receipt]:
        """As publish(), without waiting: the receipt comes with the future.

        Raises Overloaded while 64 MiB of messages have no receipt.
        """
        _ = self._opened_here
        message = self.message(topic, payload, options)
        if not self.room.has(len(message.record)):
            raise Overloaded(f"{self._unanswered_bytes} bytes are sent and not answered; await some of their receipts")
        return self._send(message)

    def batch(self) -> BatchOfOneTopic:
        """Messages of one topic that are stored together, or not at all, when the `async with` block ends.

        async with client.batch() as batch:
            batch.publish("line/7/temp", b"21.5")
            batch.publish("line/7/temp", b"21.6")
        first, second = batch.receipts
        """
        plain_bytes = self._plain_bytes
        return BatchOfOneTopic(self.message, self._publish_whole, self._batch_bytes, plain_bytes)

    async def publish_many(self, messages: Iterable[ToPublish]) -> list[Receipt]:
        """Store messages of any topics, in their order, and wait for their receipts. Cheaper by far than to publish()
        each, but some may be stored and others not.

        receipts = await client.publish_many([("line/7/temp", b"21.5"), ("line/8/temp", b"19", {"key": "m-8"})])

        A message is a topic, a payload and, if it has more, a dict of what PublishOptions names. Raises BadMessage,
        TypeError or StoreRefused (too large), and nothing was sent; NotAllStored: some were refused or timed out.
        """
        if not self._is_ready:
            await self._first_use()
        most_bytes, most_changes = min(PACK_BYTES, self._batch_bytes), pack_changes(self._opened.requests.welcome)
        packer = Packer(self.message, most_bytes, most_changes, self._plain_bytes)
        return await published(list(packer.packs(messages)), self._publish_whole, self._send)

    @property
    def _plain_bytes(self) -> int:
        """Payloads up to this size are a message by themselves; -1 where each message names the current span."""
        return -1 if current_span.current_headers() else self._compression.above_bytes

    @property
    def _batch_bytes(self) -> int:
        """Of messages that one batch can have."""
        return batch_bytes(self._opened.requests.welcome)

    @property
    def _unanswered_bytes(self) -> int:
        held = self._gatherer.held_bytes if self._gatherer is not None else 0
        return max(held, self._outbox.unanswered_bytes if self._outbox is not None else 0)

    def message(self, topic: str, payload: bytes | str, options: PublishLater) -> Outgoing:
        """A message for put(); from any thread. Takes `delay` out of the options. Raises as publish()."""
        if "delay" not in options:
            return self._message(topic, payload, options)
        delay = options.pop("delay")
        welcome = self._opened.requests.welcome
        most_s = MOST_DELAY_S if welcome is None else welcome.max_delay_s
        return self._message(topic, payload, options, due(delay, self._opened.store_ms, most_s))

    def _message(
        self, topic: str, payload: bytes | str, options: PublishOptions, due_ms: int | None = None
    ) -> Outgoing:
        if current_span.API in sys.modules:
            options = current_span.with_current_span(options)
        in_log = self._names.topic(topic)
        left_by = b"" if due_ms is None else self._opened.left_by
        is_live_only = self._live_only.has(in_log, self._opened.requests.welcome)
        compression = self._compression
        message = outgoing(in_log, payload, is_live_only, compression, due_ms=due_ms, left_by=left_by, **options)
        if in_log != topic:
            message = message._replace(topic=topic)
        if len(message.record) > self._batch_bytes:
            text = f"a message of {len(message.record)} bytes; it takes {self._batch_bytes}: raise wire.max_frame_bytes"
            raise StoreRefused(FailureCode.RECORD_TOO_LARGE, text)
        return message

    def _send(self, message: Outgoing) -> asyncio.Future[Receipt]:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.put(message, lambda outcome: _settle(future, outcome))
        return future

    def put(self, message: Outgoing, done: Done) -> None:
        """Send a message for which there is room; `done` is called with its receipt or error. Raises ClientClosed."""
        if self._outbox is None:
            raise ClientClosed
        entry = Entry(message, done)
        if self._gatherer is None:
            self._outbox.add(entry)
        else:
            for each in self._gatherer.add(entry, self._now_s()):
                self._outbox.add(each)
            self._tick_soon()

    def at_once(self, do: Callable[[], None]) -> None:
        """Send what `do` puts in this turn of the loop; put() alone leaves that to the next one."""
        if self._link is not None:
            self._link.at_once(do)
        else:
            do()

    def _answered(self, entries: Sequence[Entry]) -> None:
        self.room.changed()
        if self._gatherer is not None:
            for entry in entries:
                self._gatherer.answered(entry)
        if self.expects_next and self._link is not None:
            self._link.wake()

    def _publish_whole(self, whole: Together) -> asyncio.Future[list[Receipt]]:
        """Raises ClientClosed."""
        future: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()
        if self._outbox is None:
            raise ClientClosed
        self._send_all()
        self._outbox.add_whole(whole, lambda outcome: _settle(future, outcome))
        return future

    async def delayed(self, topic_filter: str = "#", *, key: str | None = None) -> AsyncIterator[Pending]:
        """Delayed messages that are yet to be published, those first that are due first; of a filter, or with a key.

        async for pending in client.delayed("line/#"):
            await pending.cancel()
        """
        link = await self._used()
        after: tuple[int, int] | None = (0, 0)
        while after is not None:
            answer, _ = await self._ask(wire.ListDelayed(after, DELAYED_PER_PAGE))
            assert isinstance(answer, wire.DelayedFound)
            for log_offset, due_ms, topic, its_key in answer.messages:
                topic = link.place.names.plain_topic(topic)
                if key in (None, its_key.decode()) and matches_any((topic_filter,), topic):
                    receipt = Receipt(link.place, topic, log_offset, None)
                    yield Pending(topic, its_key.decode() or None, DelayedReceipt.of(receipt, due_ms, self._cancel))
            after = answer.next

    async def _cancel(self, log_offset: int, due_ms: int) -> bool:
        answer, _ = await self._ask(wire.CancelDelayed(log_offset, due_ms))
        assert isinstance(answer, wire.DelayedCancelled)
        return answer.was_pending

    # --- autobatch: the clock that belongs to the rules

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _tick_soon(self) -> None:
        if self._gatherer and not self._is_ticking:
            assert self._autobatch is not None
            self._is_ticking = True
            asyncio.get_running_loop().call_later(self._autobatch.tick_s, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        if self._gatherer is not None and self._outbox is not None:
            for batch in self._gatherer.due(self._now_s()):
                for entry in batch:
                    self._outbox.add(entry)
            self._tick_soon()

    def _send_all(self) -> None:
        """Hold nothing back."""
        for batch in self._gatherer.collect() if self._gatherer is not None else ():
            for entry in batch:
                assert self._outbox is not None
                self._outbox.add(entry)

    # --- reading

    def read(
        self, topic_filter: str, *, start: Position = "earliest", stop: Position | None = "now", tag: str = ""
    ) -> Reading:
        """Stored messages of a topic, a filter, or all topics (`#`), in the store's order, without a consumer group.

        `start` (that one included) and `stop` (that one not): `earliest`, `now`, `-90s`, `-15m`, `-1h`, `-7d`, an RFC
        3339 time, a datetime, a timedelta (so long ago), a log_offset (int), or `@7` for a queue_offset of one topic.
        With stop=None it goes on with what comes. Messages of topics in the store's `live_only` are not kept, so they
        are not read. `tag`: messages with this tag alone; the store passes the others over without reading them.

        async for message in client.read("line/#", start="-1h"): ...
        async for batch in client.read("line/#", start="-1h").batches(): ...     # faster: some thousand at a time

        Raises BadPosition; while it is iterated over, StoreRefused or TimedOut.
        """
        return Reading(self._opened_here, self._names.topic(topic_filter), start, stop, tag)

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
        """Be a consumer of a group: each message is one consumer's, until it is acked, and comes again if it is not.

        async for message in client.subscribe("line/+/temp", group="billing"):
            await message.ack()  # or retry(after=5), reject("why"), extend(60); without await where it need not be sure

        A group is its name and its filter; it is made by its first consumer, and begins at `start`: `earliest`, `now`,
        a time as in read(), or `@7`, a queue_offset of the filter's queue. Filters other than a topic and `level/#`
        have a queue only from their first use on: where it lacks messages from `start` on, that is refused
        (StoreRefused); without `start` the group begins with the earliest that its queue has. `prefetch`: no more
        messages than this are in hand without having been settled. `tag`: the group has messages with one of these tags
        alone (`fast`, `fast||slow`), or first (`alarm > warning > *`: alarms, warnings, all others), which cannot be
        changed later. Options (see GroupOptions) say how the group deals.

        Leaving the loop, or the `async with` block around it, gives back what is not settled, at once. If the
        connection or the store goes away it goes on by itself as soon as it is back. Raises BadOption, BadPosition;
        while it is iterated over, StoreRefused.

        A program that stands still for longer than the store's wire.lease_ms (2 s) is taken for dead: have what takes
        long run in a thread (asyncio.to_thread), or use penstock.sync.
        """
        self._subscriptions += 1
        consumer = str(self._subscriptions)
        wanted = WantedMessages(
            self._names.topic(topic_filter),
            self._names.group(group_name(group)),
            consumer,
            group_settings(**options),
            group_start("earliest" if start is None else start),
            prefetch_of(prefetch),
            or_refuse=start is not None,
            tag=group_tag(tag),
        )
        return Subscription(self._opened_here, wanted)

    async def find(
        self, key: str, *, topic: str = "", since: Moment = "earliest", until: Moment = "now", limit: int = 100
    ) -> list[Message]:
        """The newest `limit` messages with a key, newest first; of a topic or filter, if one is given.

        `since` and `until` (that one not): `earliest`, `now`, `-90s`, `-1h`, `-7d`, an RFC 3339 time, a datetime, or
        a timedelta (so long ago). Raises BadPosition, StoreRefused, TimedOut.
        """
        link = await self._used()
        times = moment(since), moment(until)
        in_log = self._names.topic(topic) if topic else ""
        found: list[Message] = []
        before = NO_END
        while before and len(found) < limit:
            answer, records = await self._ask(wire.Find(key, in_log, *times, before, limit - len(found)))
            assert isinstance(answer, wire.Found)
            found += [Message(record, None, link.place) for record in walk(records)]
            before = answer.before
        return found

    async def _ask(self, message: wire.WireMessage) -> tuple[wire.WireMessage, memoryview]:
        """An answer and the records after it. Raises a ClientError."""
        future: asyncio.Future[tuple[wire.WireMessage, memoryview]] = asyncio.get_running_loop().create_future()

        def answered(outcome: Outcome, frame: Frame) -> None:
            _settle(future, outcome if isinstance(outcome, Exception) else (outcome, frame.records))

        (await self._used()).requests.ask(message, answered)
        return await future

    async def rights(self) -> UserRights:
        """Who this client is, and whether it has the right `admin` and may read the store's log. Raises StoreRefused,
        TimedOut."""
        return await rights(self._ask, (await self._used()).requests.welcome)

    async def permitted(self, action: str, topics: Sequence[str]) -> list[bool]:
        """Whether this client may do `action` (`publish`, `subscribe`, ... as in the permissions file), for each topic
        or filter. Raises StoreRefused (there is no such action), TimedOut."""
        welcome = (await self._used()).requests.welcome
        return await permitted(self._ask, welcome, self._names, action, topics)

    async def get(self, message_id: str) -> Message:
        """The message that a receipt or a message names.

        Raises BadMessageId for what is no id, was changed, or is of another store; NotFound where no message begins, or
        it is not kept any more.
        """
        link = await self._used()
        place, log_offset = parse_message_id(message_id)
        if place != link.place:
            raise BadMessageId(
                f"{message_id} is of the store at {place}, and this client is connected to {link.place}; ask that "
                "store (if it is the same one, set its wire.advertise, so that all ids name it alike)"
            )
        try:
            answer, records = await self._ask(wire.Get(log_offset))
        except StoreRefused as error:
            if error.code == FailureCode.NO_SUCH_POSITION:
                raise NotFound(f"{message_id}: {error}") from None
            raise
        assert isinstance(answer, wire.Got)
        (record,) = walk(records)
        return Message(record, answer.queue_offset, link.place)


def _settle(future: asyncio.Future[T], outcome: T | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
