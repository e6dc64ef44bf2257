"""Times as people say them, against this machine's clock."""

from __future__ import annotations

import re
import time

_AGO = re.compile(r"-(\d{1,9})([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def ago_ms(text: str) -> int | None:
    """Unix time in ms of `-90s`, `-15m`, `-1h` or `-7d`; None: it is none of these."""
    ago = _AGO.fullmatch(text)
    return int((time.time() - int(ago[1]) * _UNITS_S[ago[2]]) * 1000) if ago else None
