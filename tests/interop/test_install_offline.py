"""`make serve` without a network, and with a pyproject.toml that is newer than what is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.test_readme import ISOLATED
from tests.support.server_process import ROOT

LEAF = "store/records/_columns"
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
[project]
name = "penstock"
version = "1"
dependencies = ["typer", {more}]
"""


def offline(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PENSTOCK_"))}
    return subprocess.run(
        [*ISOLATED, *command],
        cwd=cwd,
        env=environment | {"PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_make_serve_starts_what_is_installed_offline(tmp_path: Path) -> None:
    """The stamp is older than pyproject.toml, and everything else is as it is in this checkout."""
    stamp = tmp_path / "penstock-installed"
    stamp.touch()
    os.utime(stamp, (0, 0))
    variables = [f"ENVIRONMENT={tmp_path}", f"PYTHON={sys.executable}", "SERVE=--print-config"]
    done = offline("make", "--no-print-directory", "serve", *variables)
    assert done.returncode == 0, done
    assert "[store]" in done.stdout
    (said,) = done.stderr.splitlines()
    assert said.startswith("Penstock is not installed anew, since nothing can be downloaded")
    assert stamp.stat().st_mtime == 0  # the next start tries again


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of one as the installation looks at, with one compiled part."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "install", tmp_path / ".ci")
    (tmp_path / LEAF).parent.mkdir(parents=True)
    (tmp_path / "store" / "__init__.py").touch()
    for path in ROOT.glob(f"{LEAF}.*"):
        shutil.copy2(path, tmp_path / LEAF.rpartition("/")[0])
    (tmp_path / "pyproject.toml").write_text(PROJECT.format(more=""))
    return tmp_path


def test_offline_install_names_what_is_missing(checkout: Path) -> None:
    install = (".ci/install", sys.executable, "stamp")
    assert offline(*install, cwd=checkout).returncode == 0
    (checkout / "pyproject.toml").write_text(PROJECT.format(more='"no-such-thing>=3"'))
    done = offline(*install, cwd=checkout)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert done.stderr.endswith("and no-such-thing>=3 is missing\n")
    (checkout / f"{LEAF}.pyx").touch()
    done = offline(*install, cwd=checkout)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert done.stderr.endswith(f"and {LEAF}.pyx is not compiled as it is now\n")
    assert not (checkout / "stamp").exists()


def test_an_error_that_is_none_of_the_network_is_shown_as_it_is(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text("not toml")
    done = offline(".ci/install", sys.executable, "stamp", cwd=checkout)
    assert done.returncode == 1
    assert "TOML" in done.stderr
