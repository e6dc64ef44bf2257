"""The handshake: who is let in, who is not, and what either is told."""

import hmac

import pytest

from store.errors import HandshakeRefused, WireError
from store.wire import handshake
from store.wire.frames import FrameReader, encode
from store.wire.handshake import MAGIC, VERSIONS, ClientHandshake, ServerHandshake
from store.wire.messages import Goodbye, Grew, Hello, Ping, Refused, RefusedReason, Role, Welcome

WELCOME = Welcome(9, "main", 3, 4096, 4096, 5000, ["live/#"], 64)
TOKENS = {"gateway": "s3cret", "client": None}
HELLO = Hello([1], "gateway", "gw-1", "s3cret")


def server() -> ServerHandshake:
    return ServerHandshake(lambda _: WELCOME, TOKENS)


def refusal(data: bytes) -> Refused:
    """What a server answers, at once, to a peer that it does not let in."""
    refusing = server()
    (frame,) = FrameReader(4096, Role.STORE).feed(refusing.feed(data))
    assert isinstance(frame.message, Refused)
    assert (refusing.refused, refusing.hello, refusing.is_done) == (frame.message, None, True)
    return frame.message


@pytest.mark.parametrize("size", [1, 7, 8, 1000])
def test_both_sides_meet(size: int) -> None:
    ours, theirs = ServerHandshake(lambda _: WELCOME, TOKENS), ClientHandshake(HELLO)
    greeting = theirs.greeting + encode(Ping())
    answer = b"".join(ours.feed(greeting[at : at + size]) for at in range(0, len(greeting), size))
    assert (ours.hello, ours.refused, ours.is_done) == (HELLO, None, True)
    assert ours.rest == encode(Ping())
    answer += encode(Grew([(1, 2)], 64))
    welcomes = [theirs.feed(answer[at : at + size]) for at in range(0, len(answer), size)]
    assert welcomes[-1] == theirs.welcome == Welcome(1, "main", 3, 4096, 4096, 5000, ["live/#"], 64)
    assert theirs.rest == encode(Grew([(1, 2)], 64))


def test_handshake_can_refuse_a_peer_with_a_valid_hello() -> None:
    ours = ServerHandshake(lambda hello: Refused(RefusedReason.BAD_HELLO, f"{hello.name} is taken"), TOKENS)
    (frame,) = FrameReader(4096, Role.STORE).feed(ours.feed(MAGIC + encode(HELLO)))
    assert frame.message == ours.refused == Refused("bad_hello", "gw-1 is taken")
    assert ours.hello is None


def test_the_highest_common_version_is_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "VERSIONS", (2, 3, 4))
    for offered, chosen in (([3, 1, 2, 9], 3), ([2], 2), ([4, 5], 4)):
        theirs = ClientHandshake(Hello(offered, "client", ""))
        welcome = theirs.feed(server().feed(theirs.greeting))
        assert welcome is not None
        assert welcome.version == chosen
    refused = refusal(MAGIC + encode(Hello([1, 5], "client", "")))
    assert refused == Refused("version", "the store speaks version 2, 3, 4 of the protocol, not 1, 5")


@pytest.mark.parametrize(
    ("hello", "reason", "message"),
    [
        (Hello([1], "gateway", "gw", "S3cret"), "token", "not the token of a gateway"),
        (Hello([1], "gateway", "gw", ""), "token", "not the token of a gateway"),
        (Hello([1], "gateway", "gw", "s3cret\u00e9"), "token", "not the token of a gateway"),
        (Hello([1], "store", "gw", "s3cret"), "role", "nobody is let in here as 'store'"),
        (Hello([1], "a\nb", "gw", "s3cret"), "role", r"nobody is let in here as 'a\nb'"),
        (
            Hello([VERSIONS[-1] + 1], "gateway", "gw", "s3cret"),
            "version",
            f"the store speaks version {', '.join(map(str, VERSIONS))} of the protocol, not {VERSIONS[-1] + 1}",
        ),
    ],
)
def test_handshake_refuses_invalid_hellos(hello: Hello, reason: str, message: str) -> None:
    assert refusal(MAGIC + encode(hello)) == Refused(reason, message)
    theirs = ClientHandshake(hello)
    with pytest.raises(HandshakeRefused) as caught:
        theirs.feed(server().feed(theirs.greeting))
    assert caught.value.reason == reason
    assert str(caught.value) == f"the store refused the connection ({reason}): {message}"


def test_a_role_without_a_token_may_show_any() -> None:
    for token in ("", "whatever"):
        open_to_all = server()
        open_to_all.feed(MAGIC + encode(Hello([1], "client", "spark", token)))
        assert open_to_all.hello is not None


@pytest.mark.parametrize(
    ("data", "who"),
    [
        (bytes.fromhex("101000044d5154540402003c000474657374"), "an MQTT client, which should connect to a gateway"),
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP client"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", "an HTTP client"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS client, and this listener is without TLS"),
        (b"PENSTOCk" + encode(HELLO), "neither a gateway nor a client of it"),
    ],
)
def test_a_stranger_is_told_so(data: bytes, who: str) -> None:
    assert refusal(data) == Refused(RefusedReason.NOT_PENSTOCK, f"this is a Penstock store; the peer is {who}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode(Ping()), "Ping where a Hello should be"),
        (encode(Grew([], 0)), "Grew is not for a client to send"),
        (bytes(16), "a frame cannot be 0 bytes long"),
        (encode(Hello([], "gateway", "")), "Hello: Expected `array` of length >= 1 - at `$[0]`"),
        (encode(Hello([1], "gateway", "x" * 257)), "Hello: Expected `str` of length <= 256 - at `$[2]`"),
        (encode(Goodbye("x" * 40_000)), "a frame of 40024 bytes; at most 32768 are allowed"),
    ],
)
def test_a_hello_that_is_none(data: bytes, message: str) -> None:
    assert refusal(MAGIC + data) == Refused("bad_hello", message)


def test_handshake_says_nothing_before_the_whole_hello() -> None:
    waiting = server()
    greeting = MAGIC + encode(HELLO)
    for at in range(len(greeting) - 1):
        assert waiting.feed(greeting[at : at + 1]) == b""
        assert not waiting.is_done
    assert waiting.feed(greeting[-1:])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "a frame cannot be 1347703880 bytes long|a frame of 1347703880 bytes"),
        (encode(Ping()), "Ping in answer to a Hello"),
        (encode(WELCOME), "Welcome in answer to a Hello"),
        (encode(HELLO), "Hello is not for a store to send"),
    ],
)
def test_an_answer_that_is_none(answer: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=f"no Penstock store answers here: ({reason})"):
        ClientHandshake(HELLO).feed(answer)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By digests, so that neither what they begin with nor their length makes a difference."""
    compared: list[tuple[int, int]] = []

    def spied(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return digest_compared(one, other)

    digest_compared = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", spied)
    for shown in ("s3cret", "s3creT", "s", "", "s3cret and more" * 100, "\u00e9"):
        server().feed(MAGIC + encode(Hello([1], "gateway", "gw-1", shown)))
    assert compared == [(32, 32)] * 6
