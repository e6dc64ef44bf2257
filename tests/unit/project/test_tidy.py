"""Holds the few rules of style that a linter does not.

Functions and files are short, no folder or class is a place for leftovers, and a broad `except` is
only at the edge of a connection or process.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from tests.support.server_process import ROOT

pytestmark = pytest.mark.xdist_group("sources")  # all sources are read and parsed once, and not by each process
FOLDERS = ("penstock", "gateway", "notify", "lightqueue", "store", "loadtest", "examples", "tests")
FUNCTION_LINES, FUNCTION_MEDIAN_LINES = 70, 15
FILE_LINES, FILE_MEDIAN_LINES = 500, 200
FORBIDDEN_FOLDERS = {"common", "utils", "helpers"}
PACKAGES = ("penstock", "gateway", "notify", "lightqueue", "store", "loadtest")

# Class names that stand in two modules. A class that is renamed leaves the list; no class joins it.
SAME_NAMES_ALLOWED: dict[str, str] = {
    name: why
    for names, why in (
        (
            "Client Deliveries Delivery Pending Reading Subscription",
            "the client that waits has the asyncio client's names",
        ),
        ("Disconnect Publish", "a packet of MQTT and a message of the wire are called as their protocols call them"),
        ("Receipt", "both of that"),
        ("RecordBatch", "the compiled one and its substitute in an install without compiled modules"),
    )
    for name in names.split()
}

# Each of these catches everything at the edge of a connection or process and logs the traceback.
# A file belongs here only with the reason beside it.
BROAD_EXCEPT_ALLOWED: dict[str, str] = {
    "gateway/mqtt/parts/_sockets.pxi": "the edge of a connection",
    "gateway/sessions/connection.py": "the edge of a connection",
    "loadtest/power/run.py": "whatever a damaged folder leads to is a finding",
    "notify/events/redis_lookup.py": "the edge of a connection",
    "notify/server/server.py": "the edge of a connection",
    "penstock/flows/functions/handler.py": "whatever a user's module raises when it is imported",
    "penstock/flows/functions/worker.py": "whatever a user's function raises",
    "store/log/index.py": "rocksdict raises nothing more specific",
}

CYTHON_FUNCTION = re.compile(r"^( *)(?:async )?(?:def|cdef|cpdef)\b(?! class).*\(")
CYTHON_BROAD_EXCEPT = re.compile(r"^\s*except\s*(?:(?:Base)?Exception\b[^:]*)?:")
CLASS = re.compile(r"^\s*(?:cdef )?class (\w+)\b")
MANAGER = re.compile(r"^\s*(?:cdef class|class|(?:async )?def|cp?def [\w\s*]+?)\s+\w*manager\s*[(:]", re.IGNORECASE)


@cache
def source_files() -> tuple[Path, ...]:
    return tuple(
        sorted(
            path
            for folder in FOLDERS
            for suffix in ("*.py", "*.pyx", "*.pxi")
            for path in (ROOT / folder).rglob(suffix)
        )
    )


@cache
def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse("\n".join(lines_of(path)))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file: `file:line` and how many lines each has."""
    found = python_functions(tree_of(path)) if path.suffix == ".py" else cython_functions(lines_of(path))
    for line, length in found:
        yield place(path, line), length


def python_functions(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.lineno, node.end_lineno - node.lineno + 1


def cython_functions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Cython has no parser to borrow: a function ends before the next line indented no deeper."""
    for start, line in enumerate(lines):
        opening = CYTHON_FUNCTION.match(line)
        if opening is None or not signature_ends_with_colon(lines, start):
            continue
        end = start + 1
        for number in range(start + 1, len(lines)):
            text = lines[number].strip()
            deeper = len(lines[number]) - len(lines[number].lstrip()) > len(opening[1])
            if text and not deeper and not text.startswith(")"):
                break
            if text:
                end = number + 1
        yield start + 1, end - start


def signature_ends_with_colon(lines: list[str], start: int) -> bool:
    """Tells `cdef int f(x):` from the declaration `cdef int f(x)` and from `cdef int a = g(x)`."""
    depth = 0
    for line in lines[start:]:
        code = line.split("#")[0].rstrip()
        depth += sum(code.count(c) for c in "([") - sum(code.count(c) for c in ")]")
        if depth <= 0:
            return code.endswith(":")
    return False


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def broad_excepts(path: Path) -> Iterator[int]:
    """Lines that catch, or suppress, everything."""
    if path.suffix != ".py":
        yield from (n for n, line in enumerate(lines_of(path), 1) if CYTHON_BROAD_EXCEPT.match(line))
        return
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler) and (node.type is None or is_broad(node.type)):
            # One that cleans up and raises again hides nothing.
            if not isinstance(node.body[-1], ast.Raise) or node.body[-1].exc is not None:
                yield node.lineno
        elif isinstance(node, ast.Call) and called(node.func) == "suppress":
            yield from (node.lineno for argument in node.args if is_broad(argument))


def called(function: ast.expr) -> str:
    """The last part of the name of what is called."""
    return getattr(function, "id", "") or getattr(function, "attr", "")


def is_broad(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Tuple):
        return any(is_broad(element) for element in expression.elts)
    return isinstance(expression, ast.Name) and expression.id in ("Exception", "BaseException")


def test_functions_fit_a_screen() -> None:
    lengths = [found for path in source_files() for found in functions(path)]
    assert [found for found in lengths if found[1] > FUNCTION_LINES] == []
    assert median(length for _, length in lengths) < FUNCTION_MEDIAN_LINES


def test_files_have_one_job() -> None:
    lengths = {place(path, 1): len(lines_of(path)) for path in source_files()}
    assert {path: length for path, length in lengths.items() if length > FILE_LINES} == {}
    assert median(lengths.values()) < FILE_MEDIAN_LINES


def test_no_folder_is_a_place_for_leftovers() -> None:
    folders = {path.relative_to(ROOT).parent for path in source_files()}
    assert [folder for folder in folders if FORBIDDEN_FOLDERS & set(folder.parts)] == []


def test_manager_does_not_end_a_name() -> None:
    named = [
        place(path, number)
        for path in source_files()
        for number, line in enumerate(lines_of(path), 1)
        if MANAGER.match(line)
    ]
    assert named == []


def test_broad_excepts_are_at_the_edges_only() -> None:
    found = {str(path.relative_to(ROOT)): place(path, line) for path in source_files() for line in broad_excepts(path)}
    assert [where for path, where in found.items() if path not in BROAD_EXCEPT_ALLOWED] == []
    assert BROAD_EXCEPT_ALLOWED.keys() <= found.keys(), "a reason is left without its except"


def classes() -> dict[str, list[str]]:
    """Where each class of the packages stands, by name."""
    found: dict[str, list[str]] = {}
    for path in source_files():
        if path.relative_to(ROOT).parts[0] not in PACKAGES:
            continue
        if path.suffix == ".py":
            named = [(node.name, node.lineno) for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
        else:
            matched = ((CLASS.match(line), number) for number, line in enumerate(lines_of(path), 1))
            named = [(match[1], number) for match, number in matched if match]
        for name, number in named:
            found.setdefault(name, []).append(place(path, number))
    return found


def test_a_class_name_means_one_thing() -> None:
    several = {name: where for name, where in classes().items() if len(where) > 1}
    assert {name: where for name, where in several.items() if name not in SAME_NAMES_ALLOWED} == {}
    assert SAME_NAMES_ALLOWED.keys() <= several.keys(), "a reason is left without its classes"


def private_imports(path: Path) -> Iterator[str]:
    """Private names that a file takes from another folder. A module may be private: compiled leaves are."""
    folder = ".".join(path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            if node.module.rpartition(".")[0] == folder:
                continue
            for name in node.names:
                is_module = (ROOT / node.module.replace(".", "/") / f"{name.name}.pyx").exists()
                if name.name.startswith("_") and not is_module:
                    yield f"{place(path, node.lineno)}: {node.module}.{name.name}"


def test_private_names_stay_in_their_folder() -> None:
    packages = [path for path in source_files() if path.relative_to(ROOT).parts[0] in PACKAGES and path.suffix == ".py"]
    assert [found for path in packages for found in private_imports(path)] == []


CYTHON = """\
cdef int declared(int x)
cdef int number = called(x)
cdef class C(B):
    cdef int f(self, int x) except -1 nogil:
        return x

def g(
    x,
):
    y = 1

    return y

"""


def test_the_length_of_a_cython_function() -> None:
    assert list(cython_functions(CYTHON.splitlines())) == [(4, 2), (7, 6)]
