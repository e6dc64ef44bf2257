"""Frames: every message survives the way there, however it is cut, and no bytes bring a reader out of its way."""

import random
import time
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from store.errors import HandshakeRefused, WireError
from store.wire.frames import HEAD, Frame, FrameReader, encode, frame_head
from store.wire.handshake import MAGIC, ClientHandshake, ServerHandshake
from store.wire.messages import KINDS, Append, Hello, Kind, Role, Welcome, WireMessage
from tests.support.stores import batch_of

MAX_FRAME_BYTES = 8192
FUZZED = 30_000
texts = st.text(max_size=12)


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Whatever a field of this type may hold."""
    match kind:
        case inspect.IntType():
            return st.integers(kind.ge, kind.le)
        case inspect.FloatType():
            return st.floats(kind.ge, kind.le, allow_nan=False)
        case inspect.StrType(pattern=str() as pattern) if "a-f" in pattern:  # a log's identity
            return st.binary(min_size=16, max_size=16).map(bytes.hex)
        case inspect.StrType(pattern=str() as pattern) if "A-Za-z" in pattern:  # a reader's name, or a file's
            return st.from_regex("[A-Za-z0-9_][A-Za-z0-9._-]{0,11}", fullmatch=True)
        case inspect.StrType(pattern=str()):  # a group's name
            return st.text(st.characters(codec="utf-8", exclude_characters="/+#\0"), min_size=1, max_size=12)
        case inspect.StrType():
            return st.text(min_size=kind.min_length or 0, max_size=12)
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType():
            return st.binary(min_size=kind.min_length or 0, max_size=min(50, kind.max_length or 50))
        case inspect.NoneType():
            return st.none()
        case inspect.EnumType():
            return st.sampled_from(kind.cls)
        case inspect.ListType():
            longest = min(kind.max_length or 5, 5)
            return st.lists(values(kind.item_type), min_size=kind.min_length or 0, max_size=longest)
        case inspect.DictType():
            longest = min(kind.max_length or 3, 3)
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=longest)
        case inspect.VarTupleType():
            return st.lists(values(kind.item_type), max_size=5).map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(values, kind.item_types))
        case inspect.NamedTupleType():
            return st.builds(kind.cls, *(values(field.type) for field in kind.fields))
        case inspect.UnionType():
            return st.one_of(*map(values, kind.types))
        case inspect.StructType():
            return structs(kind)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
    raise NotImplementedError(kind)


def structs(kind: inspect.StructType) -> st.SearchStrategy[Any]:
    fields = {field.name: values(field.type) for field in kind.fields}
    if kind.cls is Welcome:
        fields["max_frame_bytes"] = st.integers(1, 2**32)
        fields["credit_bytes"] = st.integers(2**32, 2**63 - 1)
    return st.builds(kind.cls, **fields)


@cache
def frames(kind: Kind) -> st.SearchStrategy[tuple[WireMessage, int, bytes]]:
    described = inspect.type_info(kind.message)
    assert isinstance(described, inspect.StructType)
    ids = st.integers(1, 2**32 - 1) if kind.asked else st.just(0)
    payloads = st.lists(st.binary(max_size=100), max_size=3 if kind.records else 0)
    return st.tuples(structs(described), ids, payloads.map(lambda payloads: bytes(batch_of(*payloads))))


from_store = st.lists(st.one_of([frames(kind) for kind in KINDS if Role.STORE in kind.senders]), max_size=6)
from_gateway = st.lists(st.one_of([frames(kind) for kind in KINDS if Role.GATEWAY in kind.senders]), max_size=6)
streams = st.tuples(st.just(Role.STORE), from_store) | st.tuples(st.just(Role.GATEWAY), from_gateway)
Sent = tuple[Role, list[tuple[WireMessage, int, bytes]]]


def plain(frames: list[Frame]) -> list[tuple[WireMessage, int, bytes, int]]:
    return [(frame.message, frame.request_id, bytes(frame.records), frame.size_bytes) for frame in frames]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.message.__name__)
@given(st.data())
def test_every_message_there_and_back(kind: Kind, data: st.DataObject) -> None:
    message, request_id, records = data.draw(frames(kind))
    frame = encode(message, request_id, records)
    assert len(frame) % 8 == 0
    assert frame == frame_head(message, request_id, len(records)) + records
    for sender in kind.senders:
        expected = [(message, request_id, records, len(frame))]
        assert plain(FrameReader(len(frame), sender).feed(frame)) == expected


@given(streams, st.data())
def test_any_chunks_give_the_same_frames(sent: Sent, data: st.DataObject) -> None:
    peer, messages = sent
    encoded = [encode(*message) for message in messages]
    stream = b"".join(encoded)
    expected = [(*message, len(frame)) for message, frame in zip(messages, encoded, strict=True)]
    assert plain(FrameReader(MAX_FRAME_BYTES, peer).feed(stream)) == expected
    reader = FrameReader(MAX_FRAME_BYTES, peer)
    received: list[Frame] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, 3) | st.integers(1, 200))
        chunk = bytearray(stream[at : at + size])
        received += reader.feed(chunk)
        chunk[:] = bytes(len(chunk))  # a reader must not lean on a buffer that is used again
        at += size
    assert plain(received) == expected


# --- by the thousand


class Samples:
    """Some frames of every kind, drawn once."""

    def __init__(self) -> None:
        self.of: dict[Role, list[bytes]] = {role: [] for role in Role}

    def add(self, kind: Kind, frame: bytes) -> None:
        for role in kind.senders:
            self.of[role].append(frame)


DRAWN_ONCE = pytest.mark.xdist_group("samples of wire frames")
"""Not by each process that runs tests: drawing them takes most of their time."""


@pytest.fixture(scope="module")
def samples() -> Samples:
    samples = Samples()

    @settings(suppress_health_check=[HealthCheck.too_slow])  # it is much that is drawn each time
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        for kind in KINDS:
            samples.add(kind, encode(*data.draw(frames(kind))))

    draw()
    return samples


def mutated(rng: random.Random, data: bytes) -> bytes:
    result = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(result) + 1)
        match rng.randrange(5):
            case 0 if at < len(result):
                result[at] ^= 1 << rng.randrange(8)
            case 1 if at + 4 <= len(result):
                at -= at % 4
                value = rng.choice((0, 1, 8, 16, 24, len(data), 2**31, 2**32 - 8, 2**32 - 1))
                result[at : at + 4] = value.to_bytes(4, "little")
            case 2:
                result[at:] = result[at + rng.randrange(20) :]
            case 3:
                result[at:at] = rng.randbytes(rng.randrange(1, 30))
            case 4 if at < len(result):
                result[at] = rng.choice(b"\x80\x90\x9f\xa1\xbf\xc0\xc1\xc4\xc7\xcf\xd3\xdb\xdd\xdf\xff")
    return bytes(result)


def received(rng: random.Random, data: bytes, peer: Role, whole: bool) -> list[Any] | None:
    """What a reader makes of a stream, in one piece or cut anywhere; None if it broke off."""
    reader = FrameReader(MAX_FRAME_BYTES, peer)
    frames: list[Frame] = []
    at = 0
    try:
        while at < len(data):
            size = len(data) if whole else rng.randrange(1, 60)
            frames += reader.feed(data[at : at + size])
            at += size
            assert len(reader._partial) < MAX_FRAME_BYTES
    except WireError:
        return None
    return plain(frames)


@DRAWN_ONCE
@pytest.mark.parametrize("peer", Role)
def test_broken_streams_end_in_a_wire_error(samples: Samples, peer: Role) -> None:
    rng = random.Random(peer)
    good = 0
    for _ in range(FUZZED):
        data = mutated(rng, b"".join(rng.choices(samples.of[peer], k=rng.randrange(1, 4))))
        frames = received(rng, data, peer, whole=True)
        assert repr(received(rng, data, peer, whole=False)) == repr(frames)  # a figure may be no number, like no other
        good += bool(frames)
    assert FUZZED // 20 < good < FUZZED * 19 // 20


def test_noise_ends_in_a_wire_error() -> None:
    rng = random.Random(3)
    for _ in range(FUZZED):
        size = rng.randrange(200)
        head = HEAD.pack(size & ~7, rng.randrange(40), b"", rng.randrange(2), rng.randrange(40))
        received(rng, rng.choice((b"", head)) + rng.randbytes(size), rng.choice(list(Role)), whole=False)


@DRAWN_ONCE
def test_broken_handshakes_are_refused(samples: Samples) -> None:
    rng = random.Random(4)
    welcome = Welcome(1, "main", 0, MAX_FRAME_BYTES, MAX_FRAME_BYTES, 5000, [], 64)
    hello = Hello([1], "gateway", "gw", "token")
    for _ in range(FUZZED // 3):
        server = ServerHandshake(lambda _: welcome, {"gateway": "token"})
        data = mutated(rng, rng.choice((MAGIC + encode(hello), MAGIC + rng.choice(samples.of[Role.GATEWAY]))))
        answer = server.feed(data)
        assert bool(answer) == server.is_done
        client = ClientHandshake(hello)
        with suppress(HandshakeRefused, WireError):
            client.feed(mutated(rng, answer or rng.choice(samples.of[Role.STORE])))


def test_a_large_frame_in_small_pieces_costs_no_more_than_its_bytes() -> None:
    frame = encode(Append(1), 1, bytes(batch_of(bytes(16 << 20))))
    reader = FrameReader(len(frame), Role.CLIENT)
    started_s = time.process_time()
    frames = [found for at in range(0, len(frame), 512) for found in reader.feed(frame[at : at + 512])]
    assert time.process_time() - started_s < 5  # some 0.1 s; were each piece to copy what came before: minutes
    assert [len(found.records) for found in frames] == [len(frame) - 24]
