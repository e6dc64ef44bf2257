"""What concerns the Python processes in which Spark runs a source: they stay, and take one task after another."""

import gc
from functools import cache


@cache
def keep_modules() -> None:
    """Take what is loaded out of garbage collection, once in a process.

    Spark's workers collect garbage after each task, and so does the process that plans. To look at some 80,000 objects
    of loaded modules, none of them garbage, takes 40 ms of each: more than to read 100,000 messages.
    """
    gc.freeze()
