"""`penstock chaos --rot`: a store whose files are injured while it runs names all that it loses, and goes on."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lightqueue.message_store import MessageStore
from loadtest.power import rot as rots
from loadtest.power.injuries import chosen, lost_by_a_lie
from loadtest.power.rot import Rot
from store.files.marks import MARKS
from store.recovery.quarantine import Quarantine
from tests.support.server_process import ROOT
from tests.support.stores import Stores, commit_log, fill, small

INJURIES = 15
TIMEOUT_S = 300


def test_rot_losses_are_named(seed: int, tmp_path: Path) -> None:
    json = tmp_path / "found.json"
    command = [sys.executable, "-m", "penstock", "chaos", "--rot", "--injuries", str(INJURIES), "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--json", str(json)],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = msgspec.json.decode(json.read_bytes(), type=Rot)
    assert (found.injuries, found.complaints) == (INJURIES, [])
    assert found.counts["acknowledged, and looked for"] > INJURIES
    assert "kept: every promise" in done.stdout
    assert list(tmp_path.glob("penstock-power-*")) == []


@pytest.mark.asyncio
async def test_a_silent_loss_is_found(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger of one that is told nothing complains."""
    from penstock.commands.chaos_rot import read_all

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(rots, "KINDS", ("zero",))
    monkeypatch.setattr(rots, "SHARES", (1.0,))
    monkeypatch.setattr(Quarantine, "findings", lambda self: [])
    found = await rots.rot(rots.RotOptions(INJURIES, seed, "sync"), read_all, lambda what, done: None)
    assert any("lost silently" in complaint for complaint in found.complaints)
    assert f"--injuries {INJURIES}" in found.verdict()
    shutil.rmtree(found.kept)


def test_injuries_are_where_something_is_written(tmp_path: Path) -> None:
    """Each is seen at once, or named by the next start; and does what it says, no more."""
    data = tmp_path / "data"
    stores = Stores(data)
    store = stores()
    fill(store, 2)
    store.write_index()
    end = commit_log(store).segments[-2].base + 4_096
    stores.close()
    rng = random.Random(1)
    seen = set()
    for number in range(60):
        kind = ("flip", "zero")[number % 2]
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(data, copy)
        injury = chosen(kind, copy, rng)
        assert injury.path is not None
        seen.add("marks" if injury.path.name == MARKS else injury.path.parent.name)
        before = injury.path.read_bytes()
        injury.inflict()
        after = injury.path.read_bytes()
        changed = [at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
        assert all(injury.at <= at < injury.at + (1 if kind == "flip" else 512) for at in changed)
        assert changed or kind == "zero"
    assert seen == {"log", "index", "marks"}
    copy = tmp_path / "lied"
    shutil.copytree(data, copy)
    sectors = lost_by_a_lie(copy, end, random.Random(1))
    assert sectors
    assert all(int(each.path.stem) + each.at >= end for each in sectors if each.path is not None)
    for each in sectors:
        each.inflict()
    lied = MessageStore(small(copy))
    assert any(finding.is_loss for finding in commit_log(lied).findings)
    lied.close()
