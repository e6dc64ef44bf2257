"""Which room imports which: writes docs/rooms.md (`python -m tests.rooms > docs/rooms.md`).

A room is a folder of a package, or a module beside them. Imports for types only do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("penstock", "loadtest", "gateway", "notify", "lightqueue", "store")
HEAD = """# Rooms

Packages import one way: `penstock`, `loadtest`, `gateway`, `notify`, `lightqueue`, `store`. So do the rooms inside a
package, from top to bottom in these pictures; import-linter holds them to it (`make lint`). An arrow that follows from
others is left out. This page is made from the code: `python -m tests.rooms > docs/rooms.md`.
"""


def imports(package: str) -> dict[str, set[str]]:
    """Of each room those that it imports."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in sorted(graph.modules):
        room = _room(module)
        if not room:
            continue
        found.setdefault(room, set())
        for imported in graph.find_modules_directly_imported_by(module):
            other = _room(imported)
            if other and other != room:
                found[room].add(other)
    return found


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def reached(rooms: Mapping[str, set[str]], start: str) -> set[str]:
    """All rooms that one imports, also by others."""
    found: set[str] = set()
    left = [start]
    while left:
        for other in rooms[left.pop()] - found:
            found.add(other)
            left.append(other)
    return found


def circles(rooms: Mapping[str, set[str]]) -> list[str]:
    """Rooms that import themselves by others."""
    return [room for room in rooms if room in reached(rooms, room)]


def arrows(rooms: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Without those that follow from others."""
    found = []
    for room, others in sorted(rooms.items()):
        by_others = {each for other in others for each in reached(rooms, other)}
        found += [(room, other) for other in sorted(others - by_others)]
    return found


def purpose(package: str, room: str) -> str:
    """The first sentence of a room's docstring."""
    path = ROOT / package / room
    source = (path / "__init__.py") if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text())) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def page() -> str:
    parts = [HEAD]
    for package in PACKAGES:
        rooms = imports(package)
        parts.append(f"## {package}\n")
        drawn = [f"    {one} --> {other}" for one, other in arrows(rooms)]
        parts.append("\n".join(["```mermaid", "graph TD", *drawn, "```"]) + "\n")
        table = ["| room | what is in it |", "|---|---|"]
        for room in sorted(rooms):
            name = f"{room}/" if (ROOT / package / room).is_dir() else f"{room}.py"
            if room != "__main__":
                table.append(f"| `{name}` | {purpose(package, room)} |")
        parts.append("\n".join(table) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
