"""What docstrings, comments and recipes name is there: modules, what stands in modules, files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import penstock
from penstock.config.settings_tree import SETTINGS

ROOT = Path(__file__).parents[3]
PACKAGES = ("gateway", "lightqueue", "loadtest", "notify", "penstock", "store")
SOURCES = (".py", ".pyi", ".pyx", ".pxi", ".pxd")
DOTTED = re.compile(rf"(?<![\w./\"'@-])(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"(?<![\w./*])[\w/]*\w\.(?:pyx|pxi|pxd|py)\b")
PLACE = re.compile(r"[\w.*-]+(?:/[\w.*-]*)+|\w+\.(?:py|pyx|pxi|pxd)")
FUNCTION_OR_CLASS = re.compile(r"_?[a-z]\w*\(\)|[A-Z]\w*")
DEFINED = re.compile(r"^\s*(?:c?def|class) [^(:\n]*?\b(\w+)[(:]|^(\w+)(?:: .*)? = ", re.MULTILINE)
PROSE = re.compile(r'"""(.*?)"""|^\s*#\s([^\n]*)|\s\s#\s([^\n]*)', re.DOTALL | re.MULTILINE)


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (path for path in (ROOT / package).rglob("*") if path.suffix in SOURCES)


def prose(path: Path) -> str:
    """Docstrings and comments."""
    return "\n".join("".join(found) for found in PROSE.findall(path.read_text()))


def leads_somewhere(name: str) -> bool:
    """To a module or a package, to what stands in a module, or to a setting."""
    parts = name.split(".")
    if name in SETTINGS or (parts[0] == "penstock" and parts[1] in dir(penstock)):
        return True
    for number in range(len(parts), 1, -1):
        place = ROOT.joinpath(*parts[:number])
        modules = [path for suffix in SOURCES if (path := place.with_suffix(suffix)).exists()]
        if modules:
            text = "".join(path.read_text() for path in modules)
            return all(re.search(rf"\b{part}\b", text) for part in parts[number:])
    return ROOT.joinpath(*parts).is_dir()


def test_a_dotted_name_leads_to_what_it_names() -> None:
    dead = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        for name in DOTTED.findall(prose(path))
        if not name.endswith(".toml") and not leads_somewhere(name)
    ]
    assert not dead


def test_a_file_that_is_named_is_there() -> None:
    there = {path.name for path in sources()} | {path.name for path in (ROOT / "tests").rglob("*.py")}
    dead = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        for name in FILE.findall(prose(path))
        if name.rpartition("/")[2] not in there
    ]
    assert not dead


def recipes() -> list[str]:
    """What CONTRIBUTING.md has in backticks where it says where a change goes."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    return re.findall(r"`([^`\n]+)`", page.split("## Where does a change go?")[1].split("\n## ")[0])


def test_a_place_that_a_recipe_names_is_there() -> None:
    there = {path.name for path in sources()}
    named = [name for name in recipes() if PLACE.fullmatch(name) and not name.startswith("NAME")]
    dead = [name for name in named if name not in there and not list(ROOT.glob(name))]
    assert len(named) > 50
    assert not dead


def test_a_name_in_a_recipe_is_defined() -> None:
    code = "\n".join(path.read_text() for path in sources())
    named = [name.removesuffix("()") for name in recipes() if FUNCTION_OR_CLASS.fullmatch(name)]
    defined = {"".join(found) for found in DEFINED.findall(code)}
    assert len(named) > 15
    assert not [name for name in named if name not in defined]
