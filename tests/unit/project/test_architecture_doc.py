"""The diagram in docs/architecture.md says what the code does: its arrows are the imports between packages."""

import re
from pathlib import Path

import grimp
import pytest

from gateway.sessions.connection import TRANSITIONS, Phase
from gateway.sessions.farewell import FAREWELLS
from tests import rooms

ROOT = Path(__file__).parents[3]
PACKAGES = ("penstock", "loadtest", "gateway", "notify", "lightqueue", "store")
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def drawn_arrows() -> set[tuple[str, str]]:
    diagram = re.search(r"```mermaid\nflowchart TD\n(.*?)```", PAGE, re.DOTALL)
    assert diagram
    return {(one, other) for one, other in re.findall(r"(\w+) --> (\w+)", diagram[1])}


def test_the_arrows_are_the_imports() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            found.add((module.split(".")[0], imported.split(".")[0]))
    assert drawn_arrows() == {(one, other) for one, other in found if one != other}


def test_the_life_of_a_connection_is_the_table() -> None:
    diagram = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    assert diagram
    drawn = re.findall(r"(\w+|\[\*\]) --> (\w+|\[\*\])(?:: (.*))?", diagram[1])
    table = [("[*]", Phase.NEW.name, "")]
    table += [(one.name, other.name, why) for one, others in TRANSITIONS.items() for other, why in others.items()]
    table += [(one.name, "[*]", ", ".join(each.name for each in FAREWELLS)) for one in Phase if not TRANSITIONS[one]]
    assert drawn == table


# A changelog names files as they were at the time.
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + [
    *sorted((ROOT / "docs").rglob("*.md"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    named = re.findall(
        r"(?<![\w/])((?:store|lightqueue|notify|gateway|penstock|loadtest|tests|examples|helm)/[\w/-]+\.\w+)", text
    )
    linked = re.findall(r"\]\((?!http)([^)#]+)", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [link for link in linked if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("package", ["gateway", "notify", "lightqueue", "store"])
def test_rooms_import_one_way(package: str) -> None:
    assert rooms.circles(rooms.imports(package)) == []


def test_the_rooms_are_drawn_as_they_are() -> None:
    assert (ROOT / "docs" / "rooms.md").read_text() == rooms.page(), "run python -m tests.rooms > docs/rooms.md"
