"""Text of others as people may see it: what changes the look of its surroundings is named instead."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

KEPT_IN_LINES = "\t\n"
_SUSPECT = re.compile(r"[^\x20-\x7e\xa1-\xac\xae-\u02ff\u0391-\u052f]")  # what need not be looked up is not
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def visible(text: str, kept: str = "") -> str:
    """Controls, marks of direction, invisible and unassigned characters become `⟨U+202E⟩`; `kept` are not replaced."""
    return _SUSPECT.sub(lambda found: found[0] if found[0] in kept else _named(found[0]), text)


@lru_cache(4096)
def _named(character: str) -> str:
    hidden = unicodedata.category(character) in _HIDDEN_CATEGORIES
    return f"⟨U+{ord(character):04X}⟩" if hidden else character
