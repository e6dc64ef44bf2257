"""Compiles C libraries that change system calls in the processes that preload them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from loadtest.errors import LoadTestError


def compile_preloaded(source: Path, library: Path) -> None:
    """Compile a library. Raises LoadTestError."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LoadTestError("a C compiler is missing; apt-get install gcc")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadTestError(f"{source.name} does not compile: {done.stderr[:500]}")
