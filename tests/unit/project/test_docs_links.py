"""Links between the pages of the documentation lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    texts = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]*)\)", page.read_text())
    missing = [
        f"{name}#{anchor}"
        for name, anchor in links
        if "://" not in name and (page.parent / name).suffix in ("", ".md")
        if anchor not in anchors(page.parent / name if name else page)
    ]
    assert not missing


def test_the_index_of_decisions_has_every_number() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    files = sorted(path.name for path in (ROOT / "docs" / "adr").glob("0*.md"))
    assert re.findall(r"^\| \d+ \| \[.*?\]\((.*?\.md)\) \|", index, re.MULTILINE) == files
    listed = {int(name[:4]) for name in files}
    sentence = re.search(r"The numbers (.*?) have no page", index, re.DOTALL)
    assert sentence
    without = {int(number) for number in re.findall(r"\d+", sentence[1])}
    assert without == set(range(1, max(listed) + 1)) - listed
