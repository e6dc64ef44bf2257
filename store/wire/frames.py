"""Frames: messages and the records after them, to bytes and back. docs/formats.md says how a frame is laid out."""

import struct
from collections.abc import Iterator

import msgspec

from store.errors import WireError
from store.records.record_bytes import check_records
from store.wire.base import MOST_ITEMS, MOST_ITEMS_OF_CLIENT
from store.wire.messages import KINDS, Kind, Role, WireMessage

Readable = bytes | bytearray | memoryview
HEAD = struct.Struct("<IB3sII")  # length of the frame, type, zeros, request_id, length of the body
_WORDS = struct.Struct("<IIII")  # the same, with type and zeros as one
_ZEROS = bytes(8)
_BEHIND_FIRST = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Bytes of a number after its first one (msgpack)."""
_BY_NUMBER = {kind.number: kind for kind in KINDS}
_BY_MESSAGE = {kind.message: kind for kind in KINDS}
_DECODE = {kind.number: msgspec.msgpack.Decoder(kind.message).decode for kind in KINDS}
_encode = msgspec.msgpack.Encoder().encode


class Frame(msgspec.Struct, frozen=True):
    """A message, its request id (0: none), its records in log format (read-only), and the bytes it took on the wire."""

    message: WireMessage
    request_id: int
    records: memoryview
    size_bytes: int


def encode(message: WireMessage, request_id: int = 0, records: Readable = b"") -> bytes:
    """A whole frame."""
    return b"".join((frame_head(message, request_id, len(records)), records))


def frame_head(message: WireMessage, request_id: int = 0, records_bytes: int = 0) -> bytes:
    """A frame but for its records, after which `records_bytes` are sent."""
    kind = _BY_MESSAGE[type(message)]
    if (request_id != 0) is not kind.asked:
        raise ValueError(f"{_name(kind)} with request_id {request_id}")
    if records_bytes % 8 or (records_bytes and not kind.records):
        raise ValueError(f"{_name(kind)} with {records_bytes} bytes of records")
    body = _encode(message)
    body_bytes = len(body)
    padding_bytes = -body_bytes & 7
    length = HEAD.size + body_bytes + padding_bytes + records_bytes
    return _WORDS.pack(length, kind.number, request_id, body_bytes) + body + _ZEROS[:padding_bytes]


Head = tuple[Kind, int, int, int, int]
"""The first bytes of a frame, checked: its kind, request_id, where its body ends, where records start, its length."""


def read_head(data: bytearray | memoryview, at: int, max_frame_bytes: int, peer: Role) -> Head:
    """The sizes in the HEAD.size bytes of the frame that begins `at` there. Raises WireError."""
    length, number, request_id, body_bytes = _WORDS.unpack_from(data, at)
    if length < HEAD.size or length & 7:
        raise WireError(f"a frame cannot be {length} bytes long")
    if length > max_frame_bytes:
        raise WireError(f"a frame of {length} bytes; at most {max_frame_bytes} are allowed")
    kind = _BY_NUMBER.get(number & 0xFF)
    if kind is None:
        raise WireError(f"frame type {number & 0xFF} is unknown")
    if peer not in kind.senders:
        raise WireError(f"{_name(kind)} is not for a {peer} to send")
    if number > 0xFF:
        raise WireError(f"{_name(kind)}: bytes 5 to 7 are not zero")
    if (request_id != 0) is not kind.asked:
        raise WireError(f"{_name(kind)} with request_id {request_id}")
    body_end = HEAD.size + body_bytes
    records_start = body_end + (-body_bytes & 7)
    if records_start > length:
        raise WireError(f"{_name(kind)}: a body of {body_bytes} bytes in a frame of {length}")
    if records_start < length and not kind.records:
        raise WireError(f"{_name(kind)}: {length - records_start} bytes behind the body")
    return kind, request_id, body_end, records_start, length


def read_frame(data: memoryview, head: Head, most_items: int = MOST_ITEMS) -> Frame:
    """The frame that `data` holds from its first byte to its last. `most_items`: of a list of queues or receipts in it.
    Raises WireError."""
    kind, request_id, body_end, records_start, length = head
    if most_items < MOST_ITEMS and _items(kind, data[HEAD.size : body_end]) > most_items:
        what = "receipts" if kind.of_receipts else "queues"
        raise WireError(f"{_name(kind)}: more than {most_items} {what}")
    if data[body_end:records_start] != _ZEROS[: records_start - body_end]:
        raise WireError(f"{_name(kind)}: padding that is not zero")
    try:
        message = _DECODE[kind.number](data[HEAD.size : body_end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{_name(kind)}: {error}") from None
    records = data[records_start:]
    if records_start < length:
        try:
            check_records(records)
        except ValueError as error:
            raise WireError(f"{_name(kind)}: {error}") from None
    return Frame(message, request_id, records, length)


def _items(kind: Kind, body: memoryview) -> int:
    """The length that a message's list states (msgpack); 0: the message has no list."""
    if not kind.of_queues and not kind.of_receipts:
        return 0
    at = 1
    if kind.of_receipts and len(body) > 1:
        at += 1 + _BEHIND_FIRST.get(body[1], 0)
    first = body[at] if len(body) > at else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F
    size = {0xDC: 2, 0xDD: 4}.get(first, 0)
    return int.from_bytes(body[at + 1 : at + 1 + size], "big")


def _name(kind: Kind) -> str:
    return kind.message.__name__


class FrameReader:
    """Cuts the bytes that come from a peer into frames. Keeps less than one frame between calls."""

    def __init__(self, max_frame_bytes: int, peer: Role) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._peer = peer
        self._most_items = MOST_ITEMS_OF_CLIENT if peer is Role.CLIENT else MOST_ITEMS
        self._partial = bytearray()  # the beginning of a frame whose end has not come

    def feed(self, data: Readable) -> list[Frame]:
        """The frames that `data` completes, all of them; else as read()."""
        return list(self.read(data))

    def read(self, data: Readable) -> Iterator[Frame]:
        """The frames that `data` completes, one after another: there may be thousands. To be read to the end before
        more is read. Their records stay valid, and keep `data` in memory if it is bytes.

        Raises WireError; the connection is to be closed then, and the reader not to be used again.
        """
        chunk = memoryview(data if isinstance(data, bytes) else bytes(data))
        size = len(chunk)
        at = 0
        if self._partial:
            at, frame = self._complete(chunk)
            if frame is not None:
                yield frame
        while size - at >= HEAD.size:
            head = read_head(chunk, at, self._max_frame_bytes, self._peer)
            end = at + head[-1]
            if end > size:
                break
            yield read_frame(chunk[at:end], head, self._most_items)
            at = end
        if at < size:
            self._partial += chunk[at:]

    def _complete(self, chunk: memoryview) -> tuple[int, Frame | None]:
        """Add to the frame that was begun. How many bytes of the chunk it took, and the frame if it is whole."""
        partial = self._partial
        at = min(len(chunk), max(0, HEAD.size - len(partial)))
        partial += chunk[:at]
        if len(partial) < HEAD.size:
            return at, None
        head = read_head(partial, 0, self._max_frame_bytes, self._peer)
        length = head[-1]
        end = min(len(chunk), at + length - len(partial))
        partial += chunk[at:end]
        if len(partial) == length:
            self._partial = bytearray()  # that one now belongs to the frame: it is not written to any more
            return end, read_frame(memoryview(partial).toreadonly(), head, self._most_items)
        return end, None
