"""Which test shows which normative statement: docs/conformance.md, made from markers on the tests.

    @pytest.mark.mqtt("MQTT-3.1.2-22", "3.1.1 MQTT-3.1.2-24")

    python -m tests.conformance > docs/conformance.md

The statements are in conformance.toml. The tests are read, not imported, so this takes no environment of theirs.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATEMENTS = ROOT / "tests" / "conformance.toml"
PAGE = ROOT / "docs" / "conformance.md"
MARKER = "mqtt"

VERSIONS = {"v5": "MQTT 5.0", "v3.1.1": "MQTT 3.1.1"}
PREFIXES = {"v5": "MQTT-", "v3.1.1": "3.1.1 MQTT-"}

HEAD = """\
# Conformance

Every normative statement of MQTT 5.0 that binds a server, and those of MQTT 3.1.1 that demand something else of it,
with the tests that show it. This page is made by `python -m tests.conformance` from `tests/conformance.toml` and from
the markers on the tests; `tests/unit/project/test_conformance.py` fails if it is stale, or if a statement has neither
a test nor a reason. The words are ours; the standards' are what counts.

What the public suites ask (paho.mqtt.testing for 3.1.1 and 5, `mqtt-cli test`) is asked in
`tests/interop/test_suites.py`, as far as no other test does. paho's suite for MQTT 5 takes settings of its own server
for granted: its `test_server_keep_alive` wants `PENSTOCK_GATEWAY__MAX_KEEP_ALIVE_S=60`, and its
`test_subscribe_failure` that `test/nosubscribe` is refused with 0x80. With a permission file that denies it
([security.md](security.md)) MQTT 3.1.1 clients are answered so, and MQTT 5 clients 0x87, not authorized.
"""


@dataclass
class Statement:
    """One [MQTT-x.y.z-n]."""

    name: str  # as in a marker
    who: str
    text: str
    why_untested: str = ""
    tests: list[str] = field(default_factory=list)  # path:function

    @property
    def binds_server(self) -> bool:
        return self.who != "client"


def load() -> dict[str, dict[str, Statement]]:
    """The statements of each standard by their names in markers, with the tests that show them."""
    tables = tomllib.loads(STATEMENTS.read_text())
    reasons = tables["untested"]
    found = {
        version: {
            PREFIXES[version] + number: Statement(
                PREFIXES[version] + number, who, text, reasons.get(number, "") if version == "v5" else ""
            )
            for number, (who, text) in tables[version].items()
        }
        for version in VERSIONS
    }
    known = {name: statement for statements in found.values() for name, statement in statements.items()}
    for name, test in marked(MARKER):
        if name not in known:
            raise KeyError(f"{test}: there is no statement {name}")
        if test not in known[name].tests:
            known[name].tests.append(test)
    return found


def marked(marker: str) -> Iterator[tuple[str, str]]:
    """(argument, test) for each argument of each marker of a name, file by file."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text()
        if f"mark.{marker}(" not in source:
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for name in _arguments(node, marker):
                    yield name, f"{path.relative_to(ROOT)}:{node.name}"


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef, marker: str) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"pytest.mark.{marker}":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def page() -> str:
    """The text of docs/conformance.md."""
    statements = load()
    parts = [HEAD, _summary(statements)]
    for version, title in VERSIONS.items():
        parts.append(f"## {title}\n\n| statement | what it says | shown by |\n|---|---|---|")
        parts[-1] += "".join(f"\n{_row(each)}" for each in statements[version].values() if each.binds_server) + "\n"
    clients = ", ".join(each.name.removeprefix("MQTT-") for each in statements["v5"].values() if not each.binds_server)
    parts.append(f"## Not about servers\n\nThese of MQTT 5.0 bind clients only: {clients}.\n")
    return "\n".join(parts)


def _summary(statements: dict[str, dict[str, Statement]]) -> str:
    lines = ["| | statements | shown by tests | do not arise |", "|---|---|---|---|"]
    for version, title in VERSIONS.items():
        ours = [each for each in statements[version].values() if each.binds_server]
        shown = sum(bool(each.tests) for each in ours)
        lines.append(f"| {title} | {len(ours)} | {shown} | {len(ours) - shown} |")
    return "\n".join(lines) + "\n"


def _row(statement: Statement) -> str:
    number = statement.name.removeprefix("3.1.1 ")
    return f"| {number} | {statement.text} | {shown_by(statement.tests) or statement.why_untested} |"


def shown_by(tests: list[str]) -> str:
    """Links to tests, for a table."""
    return "<br>".join(f"[{_short(test)}](../{test.partition(':')[0]})" for test in tests)


def _short(test: str) -> str:
    path, _, function = test.partition(":")
    return f"{Path(path).stem.removeprefix('test_')}: {function.removeprefix('test_')}"


if __name__ == "__main__":
    sys.stdout.write(page())
