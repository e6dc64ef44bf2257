"""The files that a power cut may leave: everything that was synced, and of the rest anything that a disk may hold."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from loadtest.errors import LoadTestError
from loadtest.power.recording import Recorder, Syncs, read_recording
from loadtest.power.volume import FileChange, Volume, VolumeFile, content
from tests.support.server_process import ROOT
from tests.support.stores import wait_until

IMAGES = 200

CALLS = """
import os, shutil, sys
from pathlib import Path
folder = Path(sys.argv[1])
fd = os.open(folder / "synced", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"a" * 1_500, 0)
os.fdatasync(fd)
os.pwrite(fd, b"b" * 1_500, 0)
os.ftruncate(fd, 1_400)
other = os.dup(fd)
os.close(fd)
os.write(other, b"c")
os.writev(other, [b"d", b"e"])
os.posix_fallocate(other, 0, 3_000)
os.truncate(folder / "synced", 2_000)
(folder / "sub").mkdir()
(folder / "sub" / "new").write_bytes(b"new")
os.link(folder / "sub" / "new", folder / "linked")
shutil.copyfile(folder / "synced", folder / "copied")
os.rename(folder / "sub" / "new", folder / "renamed")
at = os.open(folder / "sub", os.O_RDONLY)
inside = os.open("inside", os.O_WRONLY | os.O_CREAT | os.O_APPEND, dir_fd=at)
for _ in range(3):
    os.write(inside, b"more ")
os.rename("inside", "moved", src_dir_fd=at, dst_dir_fd=at)
os.unlink(folder / "linked")
(folder / "gone").mkdir()
(folder / "gone" / "file").touch()
shutil.rmtree(folder / "gone")
os.fsync(at)
os.system(f"echo by a child > {folder}/child")
os.chdir(folder)
open("relative", "w").write("x" * 10_000)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "root"
    root.mkdir()
    return root


def recorded(root: Path, program: str) -> Volume:
    """What a Python program does to a folder, followed."""
    recorder = Recorder(root.parent, root)
    run_recorded(recorder, root, program)
    volume = Volume()
    for event in read_recording(recorder.file):
        volume.follow(event)
    return volume


def run_recorded(recorder: Recorder, root: Path, program: str) -> None:
    environment = os.environ | recorder.environment
    subprocess.run([sys.executable, "-c", program, str(root)], env=environment, check=True, cwd=ROOT)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_calls_are_followed(root: Path) -> None:
    volume = recorded(root, CALLS)
    volume.write_whole(root.parent / "whole")
    assert files(root.parent / "whole") == files(root)
    assert sorted(files(root)) == ["child", "copied", "relative", "renamed", "sub/moved", "synced"]


def _has_come_to(recorder: Recorder, position: int) -> bool:
    return recorder.position >= position


def test_a_process_that_is_killed_has_done_what_was_written_down(root: Path) -> None:
    """Four threads that write all the time, so that a kill at any moment would often hit one in a call."""
    program = """
import os, sys, threading
def write(name):
    fd = os.open(f"{sys.argv[1]}/{name}", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    while True:
        os.write(fd, b"%07d" % os.stat(fd).st_size)
for name in "abcd":
    threading.Thread(target=write, args=name).start()
"""
    recorder = Recorder(root.parent, root)
    for _ in range(10):
        far_enough = recorder.position + 100_000
        command = [sys.executable, "-c", program, str(root)]
        process = subprocess.Popen(command, env=os.environ | recorder.environment, cwd=ROOT)
        wait_until(partial(_has_come_to, recorder, far_enough))
        with recorder.between_calls():
            process.kill()
            process.wait()
    volume = Volume()
    for event in read_recording(recorder.file):
        volume.follow(event)
    volume.write_whole(root.parent / "whole")
    assert files(root.parent / "whole") == files(root)


def test_a_shared_mapping_for_writing_is_noticed(root: Path) -> None:
    program = """
import mmap, os, sys
fd = os.open(sys.argv[1] + "/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4_096)
mmap.mmap(fd, 4_096)
"""
    with pytest.raises(LoadTestError, match="maps a file for writing"):
        recorded(root, program)


@pytest.mark.parametrize(("how", "says"), [(Syncs.FAIL, "OSError"), (Syncs.LIE, "done"), (Syncs.SLOW, "done")])
def test_syncs_that_fail_or_lie(how: Syncs, says: str, root: Path) -> None:
    program = """
import os, sys
fd = os.open(sys.argv[1] + "/a.log", os.O_RDWR | os.O_CREAT)
try:
    os.fdatasync(fd)
    os.write(fd, b"done")
except OSError:
    os.write(fd, b"OSError")
"""
    recorder = Recorder(root.parent, root)
    recorder.make_syncs(how)
    run_recorded(recorder, root, program)
    assert (root / "a.log").read_text() == says
    syncs = [event.kind for event in read_recording(recorder.file) if event.kind in "be"]
    assert syncs == (["b", "e"] if how == Syncs.SLOW else [])


def test_synced_bytes_are_in_every_image(root: Path) -> None:
    program = """
import os, sys
from pathlib import Path
folder = Path(sys.argv[1])
at = os.open(folder, os.O_RDONLY)
fd = os.open(folder / "a", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"1" * 2_048, 0)
os.fdatasync(fd)
os.fsync(at)
os.pwrite(fd, b"2" * 1_024, 1_024)
os.pwrite(fd, b"3" * 1_024, 2_048)
(folder / "b").write_bytes(b"b")
os.rename(folder / "b", folder / "c")
"""
    volume = recorded(root, program)
    found = [image(volume, root.parent / "image", seed) for seed in range(IMAGES)]
    for each in found:
        assert each["a"][:1_024] == b"1" * 1_024
        for sector in range(2, len(each["a"]) // 512):
            assert len(set(each["a"][sector * 512 : (sector + 1) * 512])) == 1, "a sector is whole"
    tails = {each["a"][1_024:2_048:512] for each in found}
    assert tails == {b"11", b"12", b"21", b"22"}
    assert {len(each["a"]) for each in found} >= {2_048, 3_072}
    assert {each["a"][2_048::512] for each in found} >= {b"", b"33", b"\0\0", b"\0003", b"3\0"}
    names = {tuple(sorted(each)) for each in found}
    assert names == {("a",), ("a", "b"), ("a", "c")}


def test_a_sync_covers_what_was_written_before_it_began(root: Path) -> None:
    program = """
import os, sys, threading
fd = os.open(sys.argv[1] + "/a", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"1", 0)
os.fdatasync(fd)
"""
    recorder = Recorder(root.parent, root)
    run_recorded(recorder, root, program)
    events = read_recording(recorder.file)
    begun = next(event for event in events if event.kind == "b")
    write = next(event for event in events if event.kind == "w")
    volume = Volume()
    for event in [each for each in events if each.kind != "w"]:
        if event.kind == "e":
            volume.follow(write._replace(number=begun.number + 1))  # while it was under way
        volume.follow(event)
    file = volume.root.names["a"]
    assert isinstance(file, VolumeFile)
    assert (bytes(file.durable), len(file.pending)) == (b"", 1)


def image(volume: Volume, to: Path, seed: int) -> dict[str, bytes]:
    volume.write_image(to, random.Random(seed))
    found = files(to)
    for path in sorted(to.rglob("*"), reverse=True):
        path.unlink()
    to.rmdir()
    return found


def test_a_file_that_was_cut_and_grew_again() -> None:
    file = VolumeFile(bytearray(b"x" * 1_024))
    file.pending = [FileChange(1, 100, None), FileChange(2, 1_024, None), FileChange(3, 1_000, b"y")]
    assert content(file, lambda _: 3) == b"x" * 100 + bytes(900) + b"y" + bytes(23)
    assert content(file, lambda _: 0) == b"x" * 1_024
    assert content(file, lambda sector: 3 * sector, 3) == b"x" * 512 + bytes(488) + b"y" + bytes(23)
    file.settle(before=3)
    assert (bytes(file.durable), len(file.pending)) == (b"x" * 100 + bytes(924), 1)
