"""The descriptors that connections may use, of those that the process may have (RLIMIT_NOFILE, getrlimit(2)).

The system gives the lowest number that is free, so a connection with a high number tells that all others are taken.
The last ones are for the store (its log, its index, what mends them), those before them for operators: clients that
come in numbers stop neither.
"""

from __future__ import annotations

import resource

STORE = 64
"""For the log, the marks, and files that are open for a moment."""
OPERATORS = 32
MOST_INDEX_FILES, LEAST_INDEX_FILES = 256, 32


def _most() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def index_files() -> int:
    """Files that the index may have open."""
    return max(LEAST_INDEX_FILES, min(MOST_INDEX_FILES, _most() // 8))


def first_of_store() -> int:
    """Operators get descriptors below this one."""
    return max(_most() // 2 + OPERATORS, _most() - STORE - index_files())


def first_of_operators() -> int:
    """Clients get descriptors below this one."""
    return first_of_store() - OPERATORS
