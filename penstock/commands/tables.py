"""Tables on the terminal. Importing rich is slow, so only functions that show a table import it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Say = Callable[..., None]  # a line, and how rich shows it

# Without a terminal rich would cut names at 80 columns.
WIDTH_IN_A_PIPE = 200


def wide_console() -> "Console":
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_IN_A_PIPE)


def teller() -> Say:
    """A function that prints a line without interpreting markup and without cutting it."""
    console = wide_console()

    def say(line: str, style: str | None = None) -> None:
        console.print(line, style=style, markup=False, soft_wrap=True)

    return say


def show_table(console: "Console", title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows with the same fields. The title shows their number."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{title} ({len(rows)})", title_justify="left")
    if not rows:
        console.print(table.title)
        return
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, int) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
