"""A connection to an MQTT broker, and what its errors mean to a flow."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.client import ConnectFlags, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from penstock.flows.definition import MqttOptions
from penstock.flows.errors import SinkAway
from penstock.flows.mqtt_place import MqttPlace

KEEP_ALIVE_S: Final = 30
KEEP_ALIVE_TIMEOUT: Final = 0x8D  # MQTT 5.0, 2.4; the library's own word for it
GOODBYE_S: Final = 1.0  # for what is not written yet
HEADER_BYTES: Final = 16  # of a PUBLISH at most, without topic, properties and payload
_SILENT: Final = logging.Logger("penstock.flows.paho", logging.CRITICAL + 1)  # a flow says it in one line
_ITS_LOG: Final = "its log may say why"
_REMEDIES: Final = {
    0x80: _ITS_LOG,
    0x84: 'mqtt.version: say "3.1.1"',
    0x85: "mqtt.id: name another one",
    0x86: "mqtt.password: correct it, or mqtt.user",
    0x87: "allow the flow's user to connect, or correct mqtt.user and mqtt.password",
    0x8E: "another client has the same id; mqtt.id: name another one",
}


class MqttLink:
    """Owner of a connection, which is not made again once it ends."""

    def __init__(self, place: MqttPlace, options: MqttOptions, client_id: str, is_clean: bool = True) -> None:
        """`is_clean`: it begins a session, which ends with it."""
        self._place, self._options = place, options
        self._is_5 = options.version == "5"
        self._is_clean = is_clean
        self._loop = asyncio.get_running_loop()
        self._why_ended: SinkAway | None = None
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._noted: deque[Any] = deque()
        self._is_woken = False
        protocol = MQTTProtocolVersion.MQTTv5 if self._is_5 else MQTTProtocolVersion.MQTTv311
        clean = None if self._is_5 else is_clean
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean,
            protocol=protocol,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.enable_logger(_SILENT)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        if place.user:
            client.username_pw_set(place.user, place.password or None)
        if place.tls is not None:
            client.tls_set_context(place.tls)
        self._client = client

    async def open(self, timeout_s: float) -> None:
        """Raises SinkAway; then it is closed."""
        self._client.connect_timeout = timeout_s
        try:
            await self._loop.run_in_executor(None, self._connect)
            self._client.loop_start()
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._connected)
        except (OSError, ValueError) as error:  # TimeoutError and SSLError as well
            await self.close()
            raise _away(self._place, error) from None
        except BaseException:
            await self.close()
            raise

    def _connect(self) -> None:
        """On a thread of the loop's executor."""
        if self._is_5:
            properties = Properties(PacketTypes.CONNECT)
            self._ask(properties)
            self._client.connect(
                self._place.host, self._place.port, KEEP_ALIVE_S, clean_start=self._is_clean, properties=properties
            )
        else:
            self._client.connect(self._place.host, self._place.port, KEEP_ALIVE_S)

    def _ask(self, properties: Properties) -> None:
        """Put into a CONNECT what else is asked for (MQTT 5.0, 3.1.2.11)."""

    @property
    def is_open(self) -> bool:
        return self._why_ended is None

    @property
    def why_ended(self) -> SinkAway:
        return self._why_ended or SinkAway("it has not ended")

    async def close(self) -> None:
        self.end(SinkAway("the flow ends"))
        self._client.disconnect()
        cut = self._loop.call_later(GOODBYE_S, self._cut)
        await self._loop.run_in_executor(None, self._client.loop_stop)
        cut.cancel()

    def _cut(self) -> None:
        """The library's thread does not end before everything is written, which a broker that stands still prevents."""
        connected = self._client.socket()
        if isinstance(connected, socket.socket):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def end(self, why: SinkAway) -> None:
        """What waits fails with this, or what ended it before; close() is to follow."""
        if self._why_ended is None:
            self._why_ended = why
        if not self._connected.done():
            self._connected.set_exception(self._why_ended)
            self._connected.exception()  # it may be that nobody waits
        self._ended(self._why_ended)

    def _ended(self, why: SinkAway) -> None:
        """Fail what waits."""

    def _take(self, noted: Any) -> None:
        """What the library's thread noted, on the loop."""

    def _took_all(self) -> None:
        """For now."""

    # --- on the library's thread

    def _note(self, what: object) -> None:
        """For the loop, which is woken once for all that comes until then."""
        self._noted.append(what)
        if not self._is_woken:
            self._is_woken = True
            self._tell(self._take_noted)

    def _tell(self, call: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call, *args)

    def _on_connect(
        self, _: object, __: object, flags: ConnectFlags, code: ReasonCode, properties: Properties | None
    ) -> None:
        self._tell(self._let_in, flags.session_present, code, properties)

    def _on_disconnect(self, _: object, __: object, flags: DisconnectFlags, code: ReasonCode, ___: object) -> None:
        if flags.is_disconnect_packet_from_server:
            self._tell(self.end, refused(self._place, "it ended the connection", code))
        else:
            what = "it answers no ping" if code == KEEP_ALIVE_TIMEOUT else "the connection was lost"
            self._tell(self.end, SinkAway(f"{self._place}: {what}; {_ITS_LOG}"))

    # --- on the loop

    def _take_noted(self) -> None:
        self._is_woken = False
        while self._noted:
            self._take(self._noted.popleft())
        self._took_all()

    def _let_in(self, is_resumed: bool, code: ReasonCode, properties: Properties | None) -> None:
        if code.is_failure:
            self.end(refused(self._place, "it does not let the flow in", code))
            return
        self._begun(is_resumed, properties)
        if not self._connected.done():
            self._connected.set_result(None)

    def _begun(self, is_resumed: bool, properties: Properties | None) -> None:
        """The broker has let it in. `is_resumed`: with the session that it had."""


def refused(place: MqttPlace, what: str, code: ReasonCode) -> SinkAway:
    remedy = _REMEDIES.get(code.value, "")
    return SinkAway(f"{place}: {what}: {code.getName()}{f'; {remedy}' if remedy else ''}")


def _away(place: MqttPlace, error: Exception) -> SinkAway:
    """What kept a connection from being made."""
    said = str(error) or "it did not answer in time"
    if isinstance(error, ssl.SSLError):
        said += "; ca_file: give the authority that signed the broker's certificate, and the name that this is for"
    return SinkAway(f"{place}: {said}")
