"""The table of docs/security.md that says what was tried names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_each_test_in_the_table_is_there() -> None:
    text = (ROOT / "docs/security.md").read_text()
    table = text.partition("<!-- held:")[2].partition("-->")[2]
    named = re.findall(r"`((?:unit|interop|crash)/[\w/]+\.py)(?:::(\w+))?`", table)
    assert len(named) > 25
    for file, test in named:
        source = (ROOT / "tests" / file).read_text()
        assert f"def {test or 'test_'}" in source, f"{file}::{test}"
