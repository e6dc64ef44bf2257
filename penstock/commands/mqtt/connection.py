"""One connection to an MQTT 5 server, made or refused in bounded time, never made again."""

import os
import secrets
import ssl
import threading
import time
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from penstock.commands.mqtt.address import ServerAddress
from penstock.commands.mqtt.tls import Tls
from penstock.errors import ConnectionFailed

CONNECT_TIMEOUT_S = 10
TRY_AGAIN_S = 0.1
KEEP_ALIVE_S = 60
MAXIMUM_RECEIVE_MAXIMUM = 65_535
CERTIFICATE_REQUIRED = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
START_A_SERVER = "start one with `penstock serve`, or name another with --url, or -h and -p"


class PahoConnection:
    """Connected on entering the context; disconnected on leaving it."""

    def __init__(self, address: ServerAddress, tls: Tls, purpose: str, wait_s: float = 0, client_id: str = "") -> None:
        """`wait_s`: for how long to try, if no server listens there yet. Raises UsageError."""
        self.address = address
        self._wait_s = wait_s
        self.receive_maximum = MAXIMUM_RECEIVE_MAXIMUM
        self.lost: str | None = None
        """Why the connection ended; set at most once, under `changed`."""
        self.changed = threading.Condition()
        self._accepted = False
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id or f"penstock-{purpose}-{os.getpid()}-{secrets.token_hex(4)}",
            protocol=MQTTProtocolVersion.MQTTv5,
            transport="websockets" if address.is_websocket else "unix" if address.scheme == "unix" else "tcp",
            reconnect_on_failure=False,
        )
        # paho's own bound cannot follow what CONNACK says; Publisher's does.
        self.client.max_inflight_messages = MAXIMUM_RECEIVE_MAXIMUM
        self.client.connect_timeout = CONNECT_TIMEOUT_S
        self.client.username_pw_set(address.username, address.password)
        context = tls.context_for(address)
        if context is not None:
            self.client.tls_set_context(context)
        if address.is_websocket:
            self.client.ws_set_options(path=address.path)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect

    def __enter__(self) -> Self:
        until_s = time.monotonic() + self._wait_s
        while not self._is_there(is_last_try=time.monotonic() >= until_s):
            time.sleep(TRY_AGAIN_S)
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while not self._accepted and self.lost is None and time.monotonic() < deadline:
            self.client.loop(timeout=0.1)
        if not self._accepted:
            raise ConnectionFailed(self.lost or f"{self.address}: no answer; {START_A_SERVER}")
        return self

    def _is_there(self, is_last_try: bool) -> bool:
        """Whether a server listens. Raises ConnectionFailed if this was the last try."""
        try:
            host, port = self.address.host or self.address.path, self.address.port or 1  # of a Unix socket none counts
            self.client.connect(host, port, KEEP_ALIVE_S)
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message.rstrip(".")
            raise ConnectionFailed(
                f"{self.address}: its certificate is not accepted ({why}); name who vouches for it with --cafile"
            ) from None
        except ssl.SSLError as error:
            if error.reason != CERTIFICATE_REQUIRED:
                raise ConnectionFailed(f"{self.address}: {error.reason or error}; look at the server's log") from None
            raise ConnectionFailed(f"{self.address}: it wants a certificate; give yours with --cert") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: no host can have this name
            if is_last_try:
                reason = "no answer" if isinstance(error, TimeoutError) else _why(error)
                raise ConnectionFailed(f"{self.address}: {reason}; {START_A_SERVER}") from None
            return False
        return True

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self.client.disconnect()
        # Waits until what is queued, DISCONNECT too, is written; a stuck server may never take it.
        if failure is None:
            self.client.loop_stop()

    def _on_connect(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.ConnectFlags,
        reason_code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason_code.is_failure:
            self._lose(f"{self.address}: refused the connection: {reason_code}; {_remedy(reason_code)}")
        else:
            self.receive_maximum = getattr(properties, "ReceiveMaximum", self.receive_maximum)
            self._accepted = True

    def _on_disconnect(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.DisconnectFlags,
        reason_code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            reason = getattr(properties, "ReasonString", None) or reason_code
            self._lose(f"{self.address}: closed the connection: {reason}")
        elif self._accepted:
            self._lose(f"{self.address}: connection lost; run the command again")
        elif self.address.is_tls:
            self._lose(f"{self.address}: closed without an answer; it may want a certificate (--cert, --key)")
        else:
            self._lose(f"{self.address}: closed without an answer; name an MQTT 5 server")

    def _lose(self, reason: str) -> None:
        with self.changed:
            self.lost = self.lost or reason
            self.changed.notify_all()


def _why(error: OSError | UnicodeError) -> str:
    return str(getattr(error, "strerror", None) or error)


def _remedy(reason_code: ReasonCode) -> str:
    if reason_code.getName() in ("Not authorized", "Bad user name or password"):
        return "give a user and a password with -u and -P, or in --url"
    return "ask whoever runs it, or name another with --url"
