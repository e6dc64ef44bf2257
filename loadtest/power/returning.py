"""Clients that come back to a store after a power cut: over real connections, each with its half of its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gateway.broker import Broker
from gateway.listen_address import ListenAddress
from gateway.mqtt.packets import PubComp, Publish, PubRec, PubRel, QoS
from gateway.settings import GatewaySettings
from gateway.transport.listener import Listener
from gateway.transport.tls import InTurn
from lightqueue.message_store import MessageStore
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from loadtest.power.traffic import VERSIONS, Flight, FlightStep
from notify.local.hub import Hub
from notify.local.store import LocalStore
from store.settings import StoreSettings


async def come_back(
    settings: StoreSettings, client_ids: list[str], flights: dict[str, list[Flight]]
) -> tuple[list[str], MessageStore]:
    """Serve a data folder, and have these clients connect and finish their QoS 2 messages.

    Returns the clients who were told that they have no session, and the store, which the caller closes. Raises
    StoreError, OSError, TimeoutError.
    """
    gone = []
    async with AsyncExitStack() as closing:
        port, store = await closing.enter_async_context(_served(settings))
        for client_id in client_ids:
            connect = persistent(client_id, version=VERSIONS.get(client_id, 5))
            connection, connack = await MqttConnection.open(port, connect)
            async with connection:
                if not connack.session_present:
                    gone.append(client_id)
                for flight in flights.get(client_id, ()):
                    await _finish(connection, flight)
    return gone, store


async def _finish(connection: MqttConnection, flight: Flight) -> None:
    """Go on with a QoS 2 message where its publisher was (MQTT 5, 4.4)."""
    if flight.step == FlightStep.SENT:
        topic = flight.key.split(" ")[1]
        payload = f"{flight.key} ".encode()
        connection.send(Publish(topic, payload, QoS.EXACTLY_ONCE, dup=True, packet_id=flight.packet_id))
        await connection.receive(PubRec)
    connection.send(PubRel(flight.packet_id))
    await connection.receive(PubComp)


@asynccontextmanager
async def _served(settings: StoreSettings) -> AsyncIterator[tuple[int, MessageStore]]:
    """The port of a gateway on a data folder, and its store, which stays open. Raises StoreError."""
    loop, hubs = asyncio.get_running_loop(), list[Hub]()

    def on_safe() -> None:
        for each in hubs:
            loop.call_soon_threadsafe(each.safe_advanced)

    store = MessageStore(settings, on_safe)
    hub = Hub(store)
    hubs.append(hub)
    broker = Broker(LocalStore.join(hub, "gateway"), GatewaySettings(), loop)
    hub.claims.ask_presence_of(broker.registry.presence)
    listener = Listener(broker, ListenAddress.parse("mqtt://127.0.0.1:0"), None, InTurn(loop.call_soon))
    try:
        await listener.open()
        yield listener.address.port, store
    except BaseException:
        store.close()
        raise
    finally:
        hubs.clear()
        listener.close()
        broker.close()
