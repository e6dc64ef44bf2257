"""Calls that go up are visible: whoever is called back is handed over at construction, or by a method with a type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rooms import ROOT

FOLDERS = ("gateway", "notify", "lightqueue", "store", "penstock")
ANSWERS = {"answered", "then"}
"""Fields of a request: what is done with its answer. Whoever owns the request may change that."""
PAHO = {"on_connect", "on_disconnect", "on_message", "on_publish", "on_subscribe"}
"""Attributes of paho's Client: it has no other way to be told what it calls."""


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py*")):
            if path.suffix in (".py", ".pyi"):
                yield path, ast.parse(path.read_text())


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [
            each
            for target in node.targets
            for each in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
        ]
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def _declared(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Attributes, and whether they hold a function: by their annotation, or by that of the parameter they come from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            is_callback = "Callable" in ast.unparse(node.annotation) or isinstance(node.value, ast.Lambda)
            if isinstance(node.target, ast.Attribute):
                yield node.target.attr, is_callback
            elif isinstance(node.target, ast.Name):
                yield node.target.id, is_callback
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            parameters = {each.arg: each.annotation for each in [*node.args.args, *node.args.kwonlyargs]}
            for each in node.body:
                if isinstance(each, ast.Assign) and isinstance(each.value, ast.Name):
                    annotation = parameters.get(each.value.id)
                    if annotation is not None and isinstance(each.targets[0], ast.Attribute):
                        yield each.targets[0].attr, "Callable" in ast.unparse(annotation)


def _methods(tree: ast.Module) -> set[str]:
    """Methods of the classes of a module."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {each.name for found in classes for each in found.body if isinstance(each, ast.FunctionDef)}


def patched(trees: list[tuple[Path, ast.Module]]) -> list[str]:
    """Where a function is put into an attribute of another object."""
    declared = [each for _, tree in trees for each in _declared(tree)]
    callbacks = {name for name, is_one in declared if is_one} - {name for name, is_one in declared if not is_one}
    callbacks -= ANSWERS
    found = []
    for path, tree in trees:
        methods = _methods(tree)
        for node in ast.walk(tree):
            for target in _targets(node):
                if not isinstance(target, ast.Attribute) or _is_own(target) or target.attr in PAHO:
                    continue
                value = getattr(node, "value", None)
                if isinstance(value, ast.Constant):
                    continue
                is_method = isinstance(value, ast.Attribute) and _is_own(value) and value.attr in methods
                if target.attr in callbacks or isinstance(value, ast.Lambda) or is_method:
                    found.append(f"{path}:{target.lineno}: {ast.unparse(target)}")
    return found


def test_no_callback_is_put_into_another_object_after_its_construction() -> None:
    """Give it to the constructor, or to a method that takes an object of a Protocol."""
    assert not patched(list(_trees()))


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def __init__(self, b):\n        b.told = lambda: None",
        "class A:\n    def __init__(self, b):\n        b.told = self._told\n    def _told(self): ...",
        "class A:\n    def __init__(self):\n        self.told: Callable[[], None] = x\ndef f(a, x):\n    a.told = x",
    ],
)
def test_callbacks_that_are_put_into_others_are_found(text: str) -> None:
    assert len(patched([(Path("a.py"), ast.parse(text))])) == 1
