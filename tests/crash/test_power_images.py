"""`penstock chaos --power`: every image that a cut may leave keeps what was promised; a lying disk is found."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from loadtest.power.run import Power, PowerOptions, power
from penstock.commands.chaos_power import consumers
from tests.support.server_process import ROOT

IMAGES = 75
TIMEOUT_S = 300


def cut_power(folder: Path, *options: str) -> tuple[int, Power, str]:
    """Exit code, what was found, and what was said."""
    command = [sys.executable, "-m", "penstock", "chaos", "--power", "--json", str(folder / "found.json"), *options]
    environment = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    said = done.stdout + done.stderr
    assert (folder / "found.json").exists(), said
    found = (folder / "found.json").read_bytes()
    return done.returncode, msgspec.json.decode(found, type=Power), said


@pytest.mark.parametrize("flush", ["sync", pytest.param("async", marks=pytest.mark.nightly)])
def test_power_cut_images_keep_every_promise(flush: str, seed: int, tmp_path: Path) -> None:
    options = ("--images", str(IMAGES), "--seed", str(seed), "--flush", flush)
    status, found, said = cut_power(tmp_path, *options)
    assert (status, found.faults) == (0, []), said
    assert "kept: every promise" in said
    assert found.counts["images"] == found.images == IMAGES
    assert found.counts["acknowledged"] > 10 * IMAGES
    assert found.syncs > 50
    assert list(tmp_path.glob("penstock-power-*")) == []
    if flush == "sync":
        assert found.counts["settled by a group"] > IMAGES
        assert found.counts["clients that came back"] > 4 * IMAGES
        assert found.counts["of QoS 2 in flight"] > IMAGES
        assert found.counts.get("lost", 0) == 0
    else:
        named = ("lost, in a range that was named", "lost, behind the log's end")
        assert found.counts["lost"] == sum(found.counts.get(how, 0) for how in named) > 0


def test_a_disk_that_lies_is_found(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store takes its word for it; that what it acknowledged was lost is what the test must see."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = power(PowerOptions(20, seed, "sync", lies=True), consumers, print, lambda what, done: None)
    assert len(found.faults) > 10
    complaints = "\n".join(complaint for fault in found.faults for complaint in fault.complaints)
    assert "acknowledged before they were synced" in complaints
    assert "lost although they were acknowledged" in complaints
    assert "clients that are told that they have no session" in complaints
    fault = found.faults[0]
    again = found.again(fault).split()[1:]
    done = subprocess.run([sys.executable, "-m", "penstock", *again], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert fault.complaints[0] in done.stdout
