"""Which test shows which mechanism of the catalogue: docs/catalogue.md, made from markers on the tests.

    @pytest.mark.catalogue("K40", "K41")

    python -m tests.catalogue > docs/catalogue.md

The mechanisms, how each is done here, and what is missing of it or of its tests, are in catalogue.toml.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from tests.conformance import ROOT, marked, shown_by

MARKER = "catalogue"
PAGE = ROOT / "docs" / "catalogue.md"

HEAD = """\
# The catalogue

The mechanisms that Penstock set out to have, how it has each of them, and the tests that show it. A row is shown if
tests show all of it; a row that is shown **partly** says what is missing, and a row that is not done says so. Tests
in `crash`, `interop` and `spark` are of real processes, files and sockets. This page is made by
`python -m tests.catalogue` from `tests/catalogue.toml` and from the markers on the tests; it is checked by
`tests/unit/project/test_catalogue.py`, which also fails if a row has neither a test nor a reason.
"""
TABLE = "| | what it must do | how Penstock does it | shown by |\n|---|---|---|---|"


class State(Enum):
    """How much of a line tests show."""

    SHOWN = "shown"
    PARTLY = "partly"
    NOT_SHOWN = "not shown"


@dataclass
class Line:
    """One mechanism."""

    name: str
    text: str
    how: str
    why_untested: str = ""
    missing: str = ""  # what tests do not show of it, if they show some of it
    tests: list[str] = field(default_factory=list)  # path:function

    @property
    def state(self) -> State:
        if not self.tests:
            return State.NOT_SHOWN
        return State.PARTLY if self.missing else State.SHOWN


def load() -> dict[str, Line]:
    """The lines by their names, with the tests that show them."""
    tables = tomllib.loads((ROOT / "tests" / "catalogue.toml").read_text())
    reasons, missing = tables["undone"], tables["partly"]
    lines = {
        name: Line(name, text, how, reasons.get(name, ""), missing.get(name, ""))
        for name, (text, how) in tables["lines"].items()
    }
    for name, test in marked(MARKER):
        if name not in lines:
            raise KeyError(f"{test}: the catalogue has no line {name}")
        if test not in lines[name].tests:
            lines[name].tests.append(test)
    return lines


def page() -> str:
    """The text of docs/catalogue.md."""
    lines = list(load().values())
    count = Counter(line.state for line in lines)
    shown, partly = count[State.SHOWN], count[State.PARTLY]
    parts = [
        HEAD,
        f"Of {len(lines)} rows {shown} are shown by tests, {partly} partly, {count[State.NOT_SHOWN]} are not.\n",
    ]
    for letter, title in tomllib.loads((ROOT / "tests" / "catalogue.toml").read_text())["parts"].items():
        rows = "".join(f"\n{_row(line)}" for line in lines if line.name[0] == letter)
        parts.append(f"## {letter}. {title}\n\n{TABLE}{rows}\n")
    return "\n".join(parts)


def _row(line: Line) -> str:
    shown = shown_by(line.tests) or line.why_untested
    if line.state is State.PARTLY:
        shown += f"<br>**partly**: {line.missing}"
    return f"| {line.name} | {line.text} | {line.how} | {shown} |"


if __name__ == "__main__":
    sys.stdout.write(page())
