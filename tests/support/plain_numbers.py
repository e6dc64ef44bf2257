"""Numbers as docs/formats.md has them in packs, in plain Python."""


def number(value: int) -> bytes:
    """7 bits a byte, the lowest first, with the high bit set in all but the last."""
    return bytes([value & 127 | 128]) + number(value >> 7) if value > 127 else bytes([value])
