"""Input of clients, at random: whole conversations by the rules, some of them broken in one place.

Names come from small pools, so that conversations meet: in sessions, topics, retained messages, packet identifiers.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from gateway.mqtt.codec import encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    RetainHandling,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode

CLIENTS, LEVELS, IDS = 24, ("a", "b", "c", "é", "", "x" * 40), 12
MOST_PACKETS = 40
SIZES = (0, 1, 40, 65_535)  # of authentication data
BROKEN_OF_100 = 15  # packets that are mutated
FILTERS = (
    "#",
    "+/#",
    "fuzz/#",
    "fuzz/+/a",
    "+/a",
    "$share/g/fuzz/#",
    "$SYS/#",
    "fuzz/a",
    "fuzz/a/b",
    "/#",
    "$share//x",
)
STARTS = ("earliest", "-1h", "-5s", "@3", "now", "", "=8", "2020-01-01T00:00:00Z", "@99999999999999999999")


class Talker:
    """One client's side of a conversation; the version is that of the connection."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.version = rng.choice((4, 5, 5))

    def opening(self) -> bytes:
        """CONNECT; now and then something else, or a broken one."""
        return self._bytes(self._connect() if self.rng.random() < 0.97 else self._any())

    def more(self) -> bytes:
        """What a client may send once it is connected."""
        return b"".join(self._bytes(self._any()) for _ in range(self.rng.randrange(1, MOST_PACKETS)))

    def answer(self, packet: Packet) -> bytes:
        """To what the server sent: mostly what it expects."""
        if self.rng.random() < 0.1:
            return self._bytes(self._acknowledgement())
        if isinstance(packet, Publish) and packet.qos:
            return self._bytes((PubAck if packet.qos == 1 else PubRec)(packet.packet_id or 1))
        if isinstance(packet, PubRec):
            return self._bytes(PubRel(packet.packet_id))
        return self._bytes(PubComp(packet.packet_id)) if isinstance(packet, PubRel) else b""

    # --- values

    def _topic(self) -> str:
        levels = [self.rng.choice(LEVELS) for _ in range(self.rng.randrange(1, 5))]
        start = self.rng.choice(("fuzz/", "fuzz/", "fuzz/", "$delayed/1/fuzz/", "$SYS/", "$delayed/x/"))
        return start + "/".join(levels)

    def _payload(self) -> bytes:
        size = self.rng.choice((0, 1, 10, 10, 100, 100, 1_000, 20_000))
        return self.rng.randbytes(size)

    def _properties(self, **choices: Callable[[], object]) -> Properties:
        """Each of them with some probability."""
        if self.version != 5:
            return Properties()
        return Properties(**{name: make() for name, make in choices.items() if self.rng.random() < 0.25})  # type: ignore[arg-type]

    def _pairs(self) -> tuple[tuple[str, str], ...]:
        own = (("penstock-receipt", "1"), ("penstock-from", self.rng.choice(STARTS)), ("k", "v" * 50), ("é", ""))
        if self.rng.random() < 0.02:  # at the limit, and beyond it
            return (self.rng.choice(own),) * self.rng.choice((255, 256, 257, 2_000))
        return tuple(self.rng.choice(own) for _ in range(self.rng.randrange(4)))

    def _message_properties(self) -> Properties:
        return self._properties(
            payload_format_indicator=lambda: self.rng.randrange(2),
            message_expiry_interval=lambda: self.rng.choice((0, 1, 60)),
            content_type=lambda: "text",
            response_topic=lambda: "fuzz/answers",
            correlation_data=lambda: self.rng.randbytes(5),
            topic_alias=lambda: self.rng.choice((1, 2, 16, 17)),
            user_properties=self._pairs,
        )

    # --- packets

    def _any(self) -> Packet:
        makers: tuple[Callable[[], Packet], ...] = (
            *[self._publish] * 8,
            *[self._subscribe] * 4,
            *[self._acknowledgement] * 2,
            self._unsubscribe,
            PingReq,
            self._rare,
        )
        return self.rng.choice(makers)()

    def _connect(self) -> Connect:
        rng = self.rng
        will = (
            Will(self._topic(), self._payload(), QoS(rng.randrange(3)), rng.random() < 0.3)
            if rng.random() < 0.3
            else None
        )
        if will is not None:
            will.properties = self._properties(will_delay_interval=lambda: 1, user_properties=self._pairs)
        properties = self._properties(
            session_expiry_interval=lambda: rng.choice((0, 1, 20, 0xFFFFFFFF)),
            receive_maximum=lambda: rng.choice((1, 3, 65_535)),
            maximum_packet_size=lambda: rng.choice((1, 10, 60, 300, 0xFFFFFFFF)),
            topic_alias_maximum=lambda: rng.choice((0, 1, 5, 65_535)),
            request_problem_information=lambda: rng.random() < 0.5,
            request_response_information=lambda: rng.random() < 0.5,
            user_properties=self._pairs,
            authentication_method=lambda: rng.choice(("SCRAM-SHA-256", "x")) if rng.random() < 0.2 else None,
        )
        return Connect(
            f"fuzz-{rng.randrange(CLIENTS)}" if rng.random() < 0.9 else "",
            self.version,
            clean_start=rng.random() < 0.4,
            keep_alive_s=rng.choice((0, 1, 60, 65_535)),
            will=will,
            username="user" if rng.random() < 0.1 else None,
            properties=properties,
        )

    def _publish(self) -> Publish:
        rng, qos = self.rng, QoS(self.rng.randrange(3))
        properties = self._message_properties()
        topic = "" if properties.topic_alias and rng.random() < 0.5 else self._topic()
        packet_id = rng.randrange(1, IDS) if qos else None
        dup = bool(qos) and rng.random() < 0.2
        return Publish(topic, self._payload(), qos, rng.random() < 0.3, dup, packet_id, properties)

    def _subscribe(self) -> Subscribe:
        rng = self.rng
        wanted = tuple(
            SubscriptionRequest(
                rng.choice(FILTERS) if rng.random() < 0.6 else self._topic(),
                QoS(rng.randrange(3)),
                no_local=self.version == 5 and rng.random() < 0.2,
                retain_as_published=self.version == 5 and rng.random() < 0.3,
                retain_handling=RetainHandling(rng.randrange(3) if self.version == 5 else 0),
            )
            for _ in range(rng.choice((1, 1, 2, 5)))
        )
        properties = self._properties(
            subscription_identifiers=lambda: (rng.choice((1, 200, 268_435_455)),), user_properties=self._pairs
        )
        return Subscribe(rng.randrange(1, IDS), wanted, properties)

    def _unsubscribe(self) -> Unsubscribe:
        return Unsubscribe(self.rng.randrange(1, IDS), tuple(self.rng.sample(FILTERS[:10], 2)))

    def _acknowledgement(self) -> Packet:
        kind = self.rng.choice((PubAck, PubRec, PubRel, PubComp))
        failed = self.version == 5 and kind in (PubAck, PubRec) and self.rng.random() < 0.2
        return kind(self.rng.randrange(1, IDS), ReasonCode.UNSPECIFIED_ERROR if failed else ReasonCode.SUCCESS)

    def _rare(self) -> Packet:
        expiry = self._properties(session_expiry_interval=lambda: self.rng.choice((0, 5)))
        kind = self.rng.choice((ReasonCode.RE_AUTHENTICATE, ReasonCode.CONTINUE_AUTHENTICATION))
        method, data = self.rng.choice(("x", "SCRAM-SHA-256", "m" * 65_535)), self.rng.randbytes(self.rng.choice(SIZES))
        auth = Auth(kind, Properties(authentication_method=method, authentication_data=data))
        auth.properties.user_properties = self._pairs()
        leaving = (ReasonCode.SUCCESS, ReasonCode.DISCONNECT_WITH_WILL_MESSAGE)
        rare: list[Packet] = [Disconnect(self.rng.choice(leaving) if self.version == 5 else leaving[0], expiry)]
        rare += [self._connect(), *([auth] if self.version == 5 else [])]
        return self.rng.choice(rare)

    # --- bytes

    def _bytes(self, packet: Packet) -> bytes:
        try:
            data = encode(packet, self.version)
        except ProtocolError:  # the pools hold names that our own codec refuses, too
            data = b"\x82\x0a\0\1\0\0\4$a/#\0" if self.version == 5 else b"\x30\2\0\0"
        return self._broken(data) if self.rng.randrange(100) < BROKEN_OF_100 and self.rng.random() < 0.2 else data

    def _broken(self, data: bytes) -> bytes:
        rng, at = self.rng, self.rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind == 0:  # one bit
            return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
        if kind == 1:  # cut off in the middle
            return data[:at]
        if kind == 2:  # a byte more
            return data[:at] + rng.randbytes(1) + data[at:]
        if kind == 3:  # an extreme length
            return data[:1] + rng.choice((b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\x80\0", b"\0")) + data[2:]
        if kind == 4:  # two packets run into each other
            return data[:at] + data
        return rng.randbytes(rng.randrange(1, 60))
