"""A peer's end of a connection without a socket or a clock."""

import pytest

from store.errors import HandshakeRefused, WireError
from store.wire.client.session import PeerSession
from store.wire.frames import Frame, encode
from store.wire.messages import Failed, FailureCode, Goodbye, Hello, Ping, Pong, Refused, Welcome

HELLO = Hello([1], "client", "c-1")
WELCOME = Welcome(1, "main", 0, 1 << 20, 256 << 10, 500, [], 64)


class Peer:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.session = PeerSession(HELLO, self.written.append, 10.0)

    def got(self, data: bytes, now_s: float = 10.0) -> list[object]:
        found = self.session.feed(data, now_s)
        return [each.message if isinstance(each, Frame) else each for each in found]


def test_the_welcome_comes_first_and_pings_are_answered() -> None:
    peer = Peer()
    failed = Failed(FailureCode.UNAVAILABLE, "no")
    data = encode(WELCOME) + encode(Ping()) + encode(failed, 7) + encode(Pong(5))
    assert peer.got(data[:30]) == []
    assert not peer.session.is_silent(1_000.0, 4)  # how long a handshake may take is for others to say
    assert peer.got(data[30:]) == [WELCOME, failed, Pong(5)]
    assert peer.written == [encode(Pong())]
    assert peer.session.welcome == WELCOME
    assert peer.got(encode(Goodbye("it stops"))) == []
    assert peer.session.farewell == "it said goodbye: it stops"


def test_heartbeats() -> None:
    peer = Peer()
    peer.session.beat(20.0)
    assert peer.written == []  # not let in so far
    peer.got(encode(WELCOME), 10.0)
    peer.session.beat(10.4)
    assert peer.written == []
    peer.session.beat(10.5)
    peer.session.beat(11.1)
    assert peer.written == [encode(Ping())]  # the next one once this one is answered
    assert not peer.session.is_silent(12.0, 4)
    assert peer.session.is_silent(12.1, 4)
    assert not peer.session.is_silent(12.1, 4, least_s=3.0)
    peer.got(encode(Pong(1)), 12.1)
    assert not peer.session.is_silent(14.0, 4)
    peer.session.beat(12.1)
    assert (len(peer.written), peer.session.pinged_s) == (2, 12.1)


def test_peer_that_is_no_store_or_refuses() -> None:
    with pytest.raises(WireError, match="no Penstock store answers here"):
        Peer().got(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(HandshakeRefused):
        Peer().got(encode(Refused("token", "not the token")))
