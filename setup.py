"""Compiles the leaves (DESIGN: few, small, free of policy); everything else is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

LEAVES = {
    "store._records": ["store/_records.pyx"],
    "store._columns": ["store/_columns.pyx"],
    "lightqueue._queues": ["lightqueue/_queues.pyx"],
    "gateway._inflight": ["gateway/_inflight.pyx"],
    "gateway._wire": ["gateway/_wire.pyx"],
}

setup(
    ext_modules=cythonize(
        [Extension(name, sources, extra_compile_args=["-O3"]) for name, sources in LEAVES.items()],
        compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False},
    )
)
