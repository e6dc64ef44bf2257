"""Progress of long work: a bar on a terminal, nothing where the output is a file."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def shown(title: str) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that takes the name of the current step and the fraction done (0 to 1)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda what, done: bar.update(task, description=f"{title}: {what}", completed=done)


@contextmanager
def one_after_another() -> Iterator[Callable[[str], Callable[[str, float], None]]]:
    """Yield a function that takes a title and shows progress under it, in place of the previous bar."""
    with ExitStack() as current:

        def shown_next(title: str) -> Callable[[str, float], None]:
            current.close()
            return current.enter_context(shown(title))

        yield shown_next
