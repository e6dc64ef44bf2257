"""`make image` and `make image-trial` with stand-ins for the programs that build and run images."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helm.chart import ROOT

BUILD = "build --no-cache --tag penstock:test . in the format docker\n"


def _program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o700)


def _on_path(folder: Path, *builders: str) -> dict[str, str]:
    """A PATH on which these are all the builders that work; each prints its arguments."""
    for name in ("bash", "dirname", "nice"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name in builders:
        _program(folder, name, f'echo "{name} $* in the format $BUILDAH_FORMAT"')
    return os.environ | {"PATH": str(folder)}


@pytest.mark.parametrize("builders", [("docker", "podman", "buildah"), ("podman", "buildah"), ("buildah",)])
def test_the_image_is_built_with_its_health_check_by_what_works(tmp_path: Path, builders: tuple[str, ...]) -> None:
    line = [str(ROOT / ".ci/image"), "penstock:test", "--no-cache"]
    environment = _on_path(tmp_path, *builders)
    if "docker" not in builders:
        _program(tmp_path, "docker", "exit 1")  # without its server
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{builders[0]} {BUILD}", "")


def test_a_builder_that_is_missing_is_named(tmp_path: Path) -> None:
    line = [str(ROOT / ".ci/image"), "penstock:test"]
    done = subprocess.run(line, env=_on_path(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("missing here: docker, podman or buildah; ")
    assert done.stderr.count("\n") == 1


def test_an_image_that_does_not_get_ready_fails_with_what_it_said(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    _program(tmp_path, "docker", f'echo "$*" >> {log}\ncase $1 in logs) echo "penstock: no space left" ;; esac')
    line = [sys.executable, "-m", "tests.support.image_trial", "penstock:test"]
    environment = _on_path(tmp_path)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 1
    assert "penstock: no space left" in done.stderr
    calls = log.read_text().splitlines()
    assert calls[:1] == ["info"]
    assert calls[1].endswith(":/var/lib/penstock penstock:test")
    assert [call.split()[0] for call in calls[-2:]] == ["rm", "volume"]
