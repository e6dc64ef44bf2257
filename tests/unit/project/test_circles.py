"""No module imports itself by others, not even for types: each can be read before those that import it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.rooms import PACKAGES, ROOT, reached

ALLOWED = {
    "gateway.delivery.expander",
    "gateway.delivery.shared_subscriptions",
    "gateway.mqtt._mqtt",
    "gateway.sessions.connection",
    "gateway.sessions.journal",
    "gateway.sessions.session",
}
"""Modules of the one circle that is left; its imports are for types."""


def _modules(package: str) -> Iterator[tuple[str, str]]:
    """Names and texts; of a compiled module the text is its stub."""
    for path in sorted((ROOT / package).rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path.read_text()


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_by_others(package: str) -> None:
    texts = dict(_modules(package))
    imports = {name: set(_imported(text)) & texts.keys() - {name} for name, text in texts.items()}
    assert len(imports) > 10
    assert not [name for name in imports if name in reached(imports, name) and name not in ALLOWED]
