"""What a flow and its worker process say to each other: msgpack, each after its length in four bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

LENGTH_BYTES: Final = 4
MOST_FRAME_BYTES: Final = 64 << 20
MOST_OUTPUTS: Final = 1_000
"""Messages that one call may publish."""


class Ready(msgspec.Struct, array_like=True, tag=0):
    """The worker's first word: the function is imported."""

    is_async: bool


class Call(msgspec.Struct, array_like=True):
    """A message for the function. `number` is in the answer."""

    number: int
    topic: str
    payload: bytes
    key: str
    headers: dict[str, str]
    message_id: str
    time_ms: int
    content_type: str


class Output(msgspec.Struct, array_like=True):
    """A message to publish."""

    topic: str
    payload: bytes
    key: str
    headers: dict[str, str]
    content_type: str


class CallAnswer(msgspec.Struct, array_like=True, tag=1):
    """What became of a call. `failed`: why it may be tried again; `refused`: why not; both empty: it is done."""

    number: int
    outputs: list[Output]
    failed: str = ""
    refused: str = ""


_encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_answer = msgspec.msgpack.Decoder(Ready | CallAnswer).decode


def framed(said: Ready | Call | CallAnswer) -> bytes:
    """Raises OverflowError: it is larger than MOST_FRAME_BYTES."""
    data = _encode(said)
    if len(data) > MOST_FRAME_BYTES:
        raise OverflowError(f"{len(data)} bytes; at most {MOST_FRAME_BYTES} are possible")
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class FrameCutter:
    """Cuts what comes from a socket into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def frames(self, data: bytes) -> Iterator[bytes]:
        """Those that are complete with what came now. Raises OverflowError: the next one is larger than allowed."""
        self._rest += data
        at = 0
        try:
            while len(self._rest) >= at + LENGTH_BYTES:
                start = at + LENGTH_BYTES
                length = int.from_bytes(self._rest[at:start], "big")
                if length > MOST_FRAME_BYTES:
                    raise OverflowError(f"a frame of {length} bytes")
                if len(self._rest) < start + length:
                    break
                at = start + length
                yield bytes(self._rest[start:at])
        finally:
            del self._rest[:at]
