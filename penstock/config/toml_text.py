"""Values as TOML 1.0."""

import json
from collections.abc import Mapping
from pathlib import Path


def toml_value(value: object) -> str:
    """A text, path, number or bool, or a list or table of them, in one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {toml_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # JSON text of integers, booleans and strings is TOML too, but for a bare DEL.
    text = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")
