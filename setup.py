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

LEAVES = {
    "store.records._records": ["store/records/_records.pyx"],
    "store.records._columns": ["store/records/_columns.pyx"],
    "lightqueue.queues._queues": ["lightqueue/queues/_queues.pyx"],
    "gateway.mqtt._inflight": ["gateway/mqtt/_inflight.pyx"],
    "gateway.mqtt._mqtt": ["gateway/mqtt/_mqtt.pyx"],
    "loadtest.devices._swarm": ["loadtest/devices/_swarm.pyx"],
}


def compiler() -> str:
    """The command that extensions are compiled with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]


def leaves() -> list[Any]:
    if shutil.which(compiler()) is None:
        print(f"penstock: no {compiler()} here, so only the client is installed, without a store", file=sys.stderr)
        return []
    from Cython.Build import cythonize

    extensions = [Extension(name, sources, extra_compile_args=["-O3", "-g0"]) for name, sources in LEAVES.items()]
    directives = {"language_level": 3, "boundscheck": False, "wraparound": False}
    return list(cythonize(extensions, compiler_directives=directives))


setup(ext_modules=leaves(), options={"build_ext": {"parallel": os.cpu_count()}})
