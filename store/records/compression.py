"""Compressed payloads: one zstd frame that states its content's size (docs/formats.md).

The library is imported when it is needed, so a client that meets no compressed payload works without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zstandard

PIECE_BYTES = 128 << 10
REMEDY = "pip install 'zstandard>=0.23,<0.26'"


class NoLibrary(Exception):
    """The zstd library is not installed. The message says how to install it."""

    def __init__(self) -> None:
        super().__init__(f"the payload is compressed, and zstandard is not installed here: {REMEDY}")


class BadFrame(ValueError):
    """The payload is marked as compressed and is no valid zstd frame."""


class _Contexts(threading.local):
    """zstd contexts of one thread: a context may be used by one thread at a time."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor: zstandard.ZstdDecompressor | None = None


_contexts = _Contexts()


def is_possible() -> bool:
    """Whether the zstd library is installed."""
    try:
        import zstandard  # noqa: F401
    except ImportError:
        return False
    return True


def compressed(payload: bytes, level: int) -> bytes:
    """A payload as a zstd frame with its size. Raises NoLibrary."""
    compressor = _contexts.compressors.get(level)
    if compressor is None:
        try:
            import zstandard
        except ImportError:
            raise NoLibrary from None
        compressor = _contexts.compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressor.compress(payload)


def stated_bytes(frame: bytes) -> int:
    """The size in bytes that a frame states for its payload; 0 if it states none. Raises NoLibrary."""
    try:
        import zstandard
    except ImportError:
        raise NoLibrary from None
    try:
        return max(zstandard.frame_content_size(frame), 0)
    except zstandard.ZstdError:
        return 0


def plain(frame: bytes) -> bytes:
    """The payload in a frame, at most as large as the frame states, which the store checked. Raises BadFrame,
    NoLibrary.
    """
    try:
        import zstandard
    except ImportError:
        raise NoLibrary from None
    if _contexts.decompressor is None:
        _contexts.decompressor = zstandard.ZstdDecompressor()
    try:
        if zstandard.frame_content_size(frame) < 1:
            raise BadFrame("it does not state its size")
        return _contexts.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadFrame(str(error)) from None


def pieces(frame: bytes) -> Iterator[bytes]:
    """The same payload in pieces of PIECE_BYTES, each decompressed when it is asked for. Raises as plain()."""
    try:
        import zstandard
    except ImportError:
        raise NoLibrary from None
    left_bytes = stated_bytes(frame)
    try:
        if left_bytes < 1:
            raise BadFrame("it does not state its size")
        # Bytes after the frame are an error: no frame, or more than was stated.
        reader = zstandard.ZstdDecompressor().stream_reader(frame, read_across_frames=True)
        while piece := reader.read(PIECE_BYTES):
            left_bytes -= len(piece)
            if left_bytes < 0:
                raise BadFrame("there is more than it states")
            yield piece
    except zstandard.ZstdError as error:
        raise BadFrame(str(error)) from None
    if left_bytes:
        raise BadFrame("it ends early")
