"""Compiles the leaves (DESIGN: few, small, free of policy); everything else is in pyproject.toml.

Without a C compiler it installs what needs no leaf: the client (`penstock.Client`), `penstock pub` and `penstock sub`.
"""

import os
import shlex
import shutil
import sys
import sysconfig
from typing import Any

from setuptools import Extension, setup

LEAVES = {  # those that take longest to compile first, as they are compiled in parallel
    "gateway.mqtt._mqtt": "-O3",
    "lightqueue.queues._queues": "-O2",  # -O3 saves 0.3 % of its instructions, and costs a quarter more time to compile
    "store.records._records": "-O3",
    "store.records._columns": "-O3",
    "loadtest.devices._swarm": "-O3",
    "gateway.mqtt._inflight": "-O2",  # likewise 0.5 %; for _mqtt and _records it is 3 %
}
"""The modules that are compiled, and how much the compiler optimises each."""


def compiler() -> str:
    """The command that extensions are compiled with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]


def leaves() -> list[Any]:
    if shutil.which(compiler()) is None:
        print(f"penstock: no {compiler()} here, so only the client is installed, without a store", file=sys.stderr)
        return []
    from Cython.Build import cythonize

    extensions = [
        Extension(name, [f"{name.replace('.', '/')}.pyx"], extra_compile_args=[optimisation, "-g0"])
        for name, optimisation in LEAVES.items()
    ]
    directives = {"language_level": 3, "boundscheck": False, "wraparound": False}
    return list(cythonize(extensions, compiler_directives=directives))


setup(ext_modules=leaves(), options={"build_ext": {"parallel": os.cpu_count()}})
