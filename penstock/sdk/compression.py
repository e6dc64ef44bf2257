"""Which payloads a client compresses, and how they become what was published again."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from penstock.sdk.errors import ClientError, Unreadable
from store.records import compression
from store.records.records import RecordFlag

log = logging.getLogger(__name__)

KIB = 1024
LOWEST_LEVEL, HIGHEST_LEVEL = 1, 22


@dataclass(frozen=True, slots=True)
class Compression:
    """In place of Client(compress=True): above how many bytes to compress, and the level of zstd (1 to 22)."""

    above_bytes: int = 4 * KIB
    level: int = 3

    def __post_init__(self) -> None:
        if self.above_bytes < 0 or not LOWEST_LEVEL <= self.level <= HIGHEST_LEVEL:
            raise ValueError(f"{self}: above_bytes must be 0 or more, and level {LOWEST_LEVEL} to {HIGHEST_LEVEL}")


NEVER = Compression(1 << 62)


def chosen(compress: bool | Compression) -> Compression:
    """The settings for Client(compress=...). Raises ClientError if it was asked for expressly and cannot be."""
    if compress is False or compression.is_possible():
        return Compression() if compress is True else compress or NEVER
    if compress is True:
        log.info("payloads are not compressed: zstandard is not installed; %s", compression.REMEDY)
        return NEVER
    raise ClientError(f"zstandard, which compresses, is not installed here: {compression.REMEDY}")


def as_stored(payload: bytes, settings: Compression) -> tuple[bytes, int]:
    """A payload as it goes into the log, and the flag that belongs to it: not compressed where that saves nothing."""
    if len(payload) > settings.above_bytes:
        frame = compression.compressed(payload, settings.level)
        if len(frame) < len(payload):
            return frame, int(RecordFlag.COMPRESSED)
    return payload, 0


def as_published(payload: bytes) -> bytes:
    """The payload that was compressed. Raises Unreadable."""
    try:
        return compression.plain(payload)
    except compression.NoLibrary as error:
        raise Unreadable(str(error)) from None
    except compression.BadFrame as error:
        raise Unreadable(f"the payload was stored compressed, and cannot be decompressed: {error}") from None
