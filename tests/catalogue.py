"""Which test shows which mechanism of the catalogue: docs/catalogue.md, made from markers on the tests.

    @pytest.mark.catalogue("K40", "K41")

    python -m tests.catalogue > docs/catalogue.md

The mechanisms, and how each is done here, are in catalogue.toml.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, field

from tests.conformance import ROOT, marked, shown_by

MARKER = "catalogue"
PAGE = ROOT / "docs" / "catalogue.md"

HEAD = """\
# The catalogue

The mechanisms that Penstock set out to have, how it has each of them, and the tests that show it; what is not done
says so. Tests in `crash`, `interop` and `spark` are of real processes, files and sockets. This page is made by
`python -m tests.catalogue` from `tests/catalogue.toml` and from the markers on the tests; it is checked by
`tests/unit/project/test_catalogue.py`, which also fails if a line has neither a test nor a reason.
"""
TABLE = "| | what it must do | how Penstock does it | shown by |\n|---|---|---|---|"


@dataclass
class Line:
    """One mechanism."""

    name: str
    text: str
    how: str
    why_untested: str = ""
    tests: list[str] = field(default_factory=list)  # path:function


def load() -> dict[str, Line]:
    """The lines by their names, with the tests that show them."""
    tables = tomllib.loads((ROOT / "tests" / "catalogue.toml").read_text())
    reasons = tables["undone"]
    lines = {name: Line(name, text, how, reasons.get(name, "")) for name, (text, how) in tables["lines"].items()}
    for name, test in marked(MARKER):
        if name not in lines:
            raise KeyError(f"{test}: the catalogue has no line {name}")
        if test not in lines[name].tests:
            lines[name].tests.append(test)
    return lines


def page() -> str:
    """The text of docs/catalogue.md."""
    lines = list(load().values())
    shown = sum(bool(line.tests) for line in lines)
    parts = [HEAD, f"Of {len(lines)} lines {shown} are shown by tests.\n"]
    for letter, title in tomllib.loads((ROOT / "tests" / "catalogue.toml").read_text())["parts"].items():
        rows = "".join(f"\n{_row(line)}" for line in lines if line.name[0] == letter)
        parts.append(f"## {letter}. {title}\n\n{TABLE}{rows}\n")
    return "\n".join(parts)


def _row(line: Line) -> str:
    return f"| {line.name} | {line.text} | {line.how} | {shown_by(line.tests) or line.why_untested} |"


if __name__ == "__main__":
    sys.stdout.write(page())
