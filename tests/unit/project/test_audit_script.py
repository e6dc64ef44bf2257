"""`make audit`: what it says where nothing can be looked up, and where something is found."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRACE = (
    'Traceback (most recent call last):\n  File "a.py", line 1, in get\n    raise it\nConnectionError: no route to host'
)
FOUND = "Found 2 known vulnerabilities in 1 package"


def audited(tmp_path: Path, compiles: str = "", finds: str = "") -> subprocess.CompletedProcess[str]:
    """With a stand-in for pip-tools and pip-audit: what each says on stderr before it fails; empty: it succeeds."""
    for name, said in (("piptools", compiles), ("pip_audit", finds)):
        (tmp_path / name).write_text(said or "No known vulnerabilities found\n")
        (tmp_path / f"{name}.code").write_text("1" if said else "0")
    stand_in = tmp_path / "python"
    stand_in.write_text(f'#!/bin/sh\ncat "{tmp_path}/$2" >&2\nexit $(cat "{tmp_path}/$2.code")\n')
    stand_in.chmod(0o700)
    return subprocess.run([ROOT / ".ci/audit", stand_in], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("failing", "asked"), [("compiles", "the package index"), ("finds", "run `make audit` where")])
def test_audit_script_reports_an_unreachable_index_in_two_lines(tmp_path: Path, failing: str, asked: str) -> None:
    done = audited(tmp_path, **{failing: TRACE})
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[0] == "ConnectionError: no route to host"
    assert "NOTHING WAS CHECKED" in lines[1]
    assert asked in lines[1]
    assert len(lines) == 2


def test_audit_script_reports_findings_with_a_remedy(tmp_path: Path) -> None:
    done = audited(tmp_path, finds=FOUND)
    assert done.returncode == 1
    assert done.stderr.startswith(FOUND)
    assert "raise the bounds in pyproject.toml" in done.stderr


def test_audit_script_without_findings(tmp_path: Path) -> None:
    done = audited(tmp_path)
    assert (done.returncode, done.stdout) == (0, "No known vulnerabilities found\n")


def test_the_nightly_run_has_it() -> None:
    _, _, nightly = (ROOT / "Makefile").read_text().partition("\nnightly:")
    assert "$(MAKE) audit" in nightly.partition("\n\n")[0]
