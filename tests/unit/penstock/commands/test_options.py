"""The options of all commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from penstock.cli import app_for


def options_of(command: Any) -> Iterator[str]:
    for each in command.params:
        yield from (option for option in each.opts if option.startswith("--"))
    for sub_command in getattr(command, "commands", {}).values():
        yield from options_of(sub_command)


def test_options_are_lower_case() -> None:
    """Typer 0.27 makes `--ADDRESS` of an option `address` whose metavar is ADDRESS, unless it states its name."""
    found = set(options_of(typer.main.get_command(app_for([]))))
    assert len(found) > 50
    assert found == {option.lower() for option in found}
