"""Write the tables in docs/operations.md, which come from the code: `make docs`."""

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from gateway.delivery.sys_topics import AVERAGED_MIN, LOADS, PREFIX, SYS_TOPICS
from gateway.observe.metrics import GATEWAY
from lightqueue.groups.group_metrics import GROUPS
from lightqueue.store_metrics import STORE
from notify.local.log_readers import LOG_READERS
from notify.remote.link_metrics import LINK
from notify.server.wire_metrics import WIRE
from store.audit_metrics import AUDIT
from store.figures import Figure

TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def all_figures() -> Iterator[tuple[str, Figure[Any]]]:
    """Every metric there is, with its section."""
    for sections in (GATEWAY, AUDIT, LINK, STORE, LOG_READERS, GROUPS, WIRE):
        for section, figures in sections.items():
            yield from ((section, figure) for figure in figures)


def renewed(page: str) -> str:
    """The page with its tables written anew."""
    tables = {"metrics": _metrics, "sys": _sys_topics}
    return TABLE.sub(lambda found: found[1] + "\n".join(tables[found[2]]()) + "\n" + found[3], page)


def _metrics() -> Iterator[str]:
    for section, figures in groupby(all_figures(), key=lambda each: each[0]):
        yield f"\n### {section}\n"
        yield "| metric | kind | what it says |"
        yield "|---|---|---|"
        for _, figure in figures:
            yield f"| `{_name(figure)}` | {figure.kind} | {figure.doc} |"
    yield ""


def _name(figure: Figure[Any]) -> str:
    return f"{figure.name}{{{figure.label}}}" if figure.label else figure.name


def _sys_topics() -> Iterator[str]:
    yield ""
    yield "| topic | what it says |"
    yield "|---|---|"
    for topic in SYS_TOPICS:
        yield f"| `{PREFIX}{topic.name}` | {topic.doc} |"
    spans = ", ".join(f"`{minutes}min`" for minutes in AVERAGED_MIN)
    for name in LOADS:
        yield f"| `{PREFIX}load/{name}/+` | Growth per minute, averaged over {spans}. |"
    yield ""


def main(path: Path) -> None:
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
