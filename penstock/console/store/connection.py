"""A user's connection to the store: the SDK's client, with what only the console asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar, Unpack

from penstock.console.store.publish_rates import PublishMeter
from penstock.sdk.client import Client
from penstock.sdk.errors import ClientError, NotPermitted
from penstock.sdk.link import UNNAMED, ClientLink
from penstock.sdk.many import ToPublish
from penstock.sdk.message import Message, Receipt
from penstock.sdk.message_id import StorePlace, parse_message_id
from penstock.sdk.outgoing import PublishLater
from store.namespaces import Namespace
from store.wire.base import WireMessage
from store.wire.handshake import READABLE_VERSION
from store.wire.messages import FailureCode, Welcome
from store.wire.rights_messages import ReadableFilters, ReadableFiltersTold

M = TypeVar("M", bound=WireMessage)


class StoreConnection(Client):
    """A connection of one user. The store judges each of its requests by the rules of MQTT clients."""

    pages: object = None
    """What remembers something of its pages: views.history.HistoryPages."""
    consumers: object = None
    """The groups that it consumes: `HttpConsumers`, in the module consuming."""
    used_s = 0.0
    """When it was used last, in seconds of the loop's clock."""
    holders = 0
    """Streams that are open on it."""
    meter: PublishMeter | None = None
    """What its messages are paid from; None: no rate is set."""

    def _pay(self, messages: int, size_bytes: int) -> None:
        if self.meter is not None:
            self.meter.pay(messages, size_bytes, asyncio.get_running_loop().time())

    async def publish(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishLater]) -> Receipt:
        """As the SDK's. Raises PublishesTooFast as well."""
        self._pay(1, len(topic) + len(payload))
        return await super().publish(topic, payload, **options)

    async def publish_many(self, messages: Iterable[ToPublish]) -> list[Receipt]:
        """As the SDK's. Raises PublishesTooFast as well: then nothing was sent."""
        messages = list(messages)
        self._pay(len(messages), sum(len(each[0]) + len(each[1]) for each in messages))
        return await super().publish_many(messages)

    def asks_for(self, address: str, operator_token: str) -> None:
        """Have the store count and ban the browser at this address, not the console. Call it before connect()."""
        self._credentials = replace(self._credentials, on_behalf_of=address, operator_token=operator_token)

    async def request(self, message: WireMessage, kind: type[M]) -> tuple[M, memoryview]:
        """An answer of the wire and the records after it. Raises a ClientError."""
        answer, records = await self._ask(message)
        if not isinstance(answer, kind):
            raise ClientError(f"{type(answer).__name__} is no answer to {type(message).__name__}")
        return answer, records

    async def link(self) -> ClientLink:
        """What its requests go by. Raises a ClientError."""
        return await self._used()

    async def check_may(self, action: str, topic_filter: str) -> None:
        """Raises NotPermitted, or another ClientError."""
        (is_permitted,) = await self.permitted(action, [topic_filter])
        if not is_permitted:
            raise NotPermitted(FailureCode.NOT_PERMITTED, f"{action} {topic_filter}")

    async def readable(self) -> tuple[list[str], bool]:
        """The topic filters that this user may subscribe to, each as a whole, and whether there are no others.

        Raises a ClientError.
        """
        welcome = self.welcome
        if welcome is not None and welcome.version < READABLE_VERSION:
            is_all = (await self.permitted("subscribe", ["#"]))[0]
            return ["#"] if is_all else [], is_all
        answer, _ = await self.request(ReadableFilters(), ReadableFiltersTold)
        return [self.names.plain_topic(each) for each in answer.filters], answer.are_all

    @property
    def names(self) -> Namespace:
        """How the log has what this user names."""
        return self._names

    @property
    def place(self) -> StorePlace:
        """Of the store, in message ids."""
        return self._opened.place

    async def at(self, message_id: str) -> Message:
        """As get(). A store that is reached by a Unix socket has no address, so an id of any address is taken."""
        place, log_offset = parse_message_id(message_id)
        if self.place.packed != UNNAMED.packed or place.packed == UNNAMED.packed:
            return await self.get(message_id)
        return await self.get(self.place.message_id(log_offset))

    @property
    def user(self) -> str:
        """Whom the store found the user to be, in its namespace; empty: nobody by name."""
        return self._link.user if self._link is not None else ""

    @property
    def account(self) -> tuple[str, str]:
        """The same with its namespace: one person, however he proves who he is."""
        return self._names.name, self.user

    @property
    def store_ms(self) -> int:
        """Unix time in ms by the store's clock."""
        return self._opened.store_ms

    @property
    def refusal(self) -> str:
        """Why the store does not let this user in any more; empty while it does."""
        refused = self._link.refused if self._link is not None else None
        return "" if refused is None else str(refused)

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.requests.welcome is not None

    @property
    def welcome(self) -> Welcome | None:
        """What the store said when it let this user in; None while it is away."""
        return self._link.requests.welcome if self._link is not None else None
