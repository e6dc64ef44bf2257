"""A connection to an AMQP broker, and what its errors mean to a flow."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aio_pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelInvalidStateError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from aiormq.exceptions import ChannelAccessRefused

from penstock.flows.amqp_place import AmqpPlace
from penstock.flows.errors import SinkAway

HEARTBEAT_S: Final = 30
VERBS: Final = {"to": "write to", "from": "read"}
AWAY: Final = (AMQPError, OSError, RuntimeError, TimeoutError, StopAsyncIteration)
"""What the library raises where the broker is not there, or ends what it was asked."""

for _name in ("aiormq", "aio_pika"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # a flow says it in one line


class AmqpLink:
    """Owner of a connection, and of a channel with publisher confirms for one exchange."""

    def __init__(
        self,
        place: AmqpPlace,
        connection: AbstractConnection,
        channel: AbstractChannel,
        exchange: AbstractExchange,
    ) -> None:
        self.exchange = exchange
        self._place, self._connection, self._channel = place, connection, channel

    @classmethod
    async def opened(cls, place: AmqpPlace, name: str, timeout_s: float) -> AmqpLink:
        """`name`: by which the broker shows it. Raises SinkAway."""
        try:
            async with asyncio.timeout(timeout_s), connected(place, name) as connection:
                channel = connection.channel(on_return_raises=True)
                await channel.initialize()
                return cls(place, connection, channel, await _exchange(channel, place))
        except AWAY as error:
            raise away(place, error) from None

    @property
    def is_open(self) -> bool:
        return not (self._connection.is_closed or self._channel.is_closed)

    async def is_blocked(self) -> bool:
        """Whether the broker takes nothing from publishers, as it has an alarm of its memory or disk."""
        if self._connection.transport is None:
            return False
        try:
            async with asyncio.timeout(0):
                await self._connection.transport.ready()
        except TimeoutError:
            return self.is_open
        return False

    async def ended_for_a_message(self) -> bool:
        """Whether the channel is closed as one of its messages was not acceptable."""
        with suppress(ChannelInvalidStateError):
            closing = (await self._channel.get_underlay_channel()).closing
            return (
                closing.done()
                and not closing.cancelled()
                and isinstance(closing.exception(), ChannelPreconditionFailed)
            )
        return False

    async def publish_alone(self, message: aio_pika.Message, routing_key: str) -> None:
        """On a channel of its own, so what ends that channel is this message's. Raises as publish()."""
        channel = self._connection.channel(on_return_raises=True)
        await channel.initialize()
        try:
            await (await _exchange(channel, self._place)).publish(message, routing_key, mandatory=True)
        finally:
            with suppress(*AWAY):
                await channel.close()

    async def close(self) -> None:
        await closed(self._connection)


async def _exchange(channel: AbstractChannel, place: AmqpPlace) -> AbstractExchange:
    return await channel.get_exchange(place.name) if place.name else channel.default_exchange


@asynccontextmanager
async def connected(place: AmqpPlace, name: str) -> AsyncIterator[AbstractConnection]:
    """A connection, which ends if the block fails. `name`: by which the broker shows it."""
    connection: AbstractConnection = await aio_pika.connect(
        host=place.host,
        port=place.port,
        login=place.user,
        password=place.password,
        virtualhost=place.vhost,
        ssl=place.tls is not None,
        ssl_context=place.tls,
        heartbeat=HEARTBEAT_S,
        client_properties={"connection_name": name},
    )
    try:
        yield connection
    except BaseException:
        await closed(connection)
        raise


async def closed(connection: AbstractConnection) -> None:
    with suppress(*AWAY):
        await connection.close()


def away(place: AmqpPlace, error: BaseException) -> SinkAway:
    """What an error of the library means. It names the field of the flow that is to be corrected, if one is."""
    remedy = ""
    match error:
        case AuthenticationError() | ProbableAuthenticationError():
            remedy = "amqp.password: correct it, or amqp.user"
        case InvalidFrameError() if "Connection.OpenOk" in str(error):  # the library does not say why
            reason = f"it does not let the flow into virtual host {place.vhost!r}"
            return SinkAway(f"{place}: {reason}; amqp.vhost: correct it, or allow it to the flow's user")
        case ChannelNotFoundEntity():
            remedy = f"make {place.what}, or correct `{place.field}`"
        case ChannelAccessRefused():
            remedy = f"allow the flow's user to {VERBS[place.field]} {place.what}"
        case _ if isinstance(error.__cause__, ssl.SSLError):
            remedy = "ca_file: give the authority that signed the broker's certificate, and the name that this is for"
    return SinkAway(f"{place}: {_said(error)}{f'; {remedy}' if remedy else ''}")


def _said(error: BaseException) -> str:
    if isinstance(error.__cause__, OSError):
        return str(error.__cause__)
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer in time"
    texts = [arg for arg in error.args if isinstance(arg, str)]
    return (texts[-1] if texts else str(error)) or type(error).__name__
