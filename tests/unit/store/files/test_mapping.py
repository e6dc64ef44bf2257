"""A mapped file: bytes that cannot be read are zeros, and nothing else changes for a process that gets SIGBUS."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from store.files._mapping import MappedFile, unreadable_pages

PAGE = os.sysconf("SC_PAGESIZE")


def mapped(path: Path, size: int) -> MappedFile:
    fd = os.open(path, os.O_RDONLY)
    try:
        return MappedFile(fd, size)
    finally:
        os.close(fd)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8 * PAGE)
    return path


def test_mapping_shows_the_file_and_later_writes(path: Path) -> None:
    shown = mapped(path, 8 * PAGE)
    with memoryview(shown) as view:
        assert view.readonly
        assert bytes(view) == b"x" * 8 * PAGE
        with path.open("r+b") as file:
            file.write(b"y")
        assert bytes(view[:2]) == b"yx"
    assert len(shown) == 8 * PAGE
    shown.close()
    with pytest.raises(ValueError, match="closed"):
        memoryview(shown)


def test_mapping_of_a_truncated_file_has_zeros(path: Path) -> None:
    shown, before = mapped(path, 8 * PAGE), unreadable_pages()
    os.truncate(path, 3 * PAGE + 10)
    with memoryview(shown) as view:
        assert bytes(view) == b"x" * (3 * PAGE + 10) + bytes(5 * PAGE - 10)
    assert unreadable_pages() == before + 4
    shown.forget_pages()
    assert bytes(memoryview(shown)[:PAGE]) == b"x" * PAGE
    assert bytes(memoryview(shown)[-PAGE:]) == bytes(PAGE)


def test_mapping_is_released_with_its_last_view(path: Path) -> None:
    shown = mapped(path, PAGE)
    view = memoryview(shown)
    with pytest.raises(BufferError):
        shown.close()
    del shown
    assert bytes(view) == b"x" * PAGE


def test_places_are_used_again(path: Path) -> None:
    for _ in range(3):
        many = [mapped(path, PAGE) for _ in range(100)]
        assert all(bytes(memoryview(each)) == b"x" * PAGE for each in many)
        for each in many:
            each.close()


@pytest.mark.parametrize("size", [0, -1])
def test_mapping_of_no_bytes_is_refused(path: Path, size: int) -> None:
    with pytest.raises(ValueError, match="cannot map"):
        mapped(path, size)


def test_a_descriptor_that_is_none(path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        MappedFile(9_999, PAGE)


OTHERS = """
import mmap, os, sys
from store.files._mapping import MappedFile
path = sys.argv[1]
fd = os.open(path, os.O_RDONLY)
ours, other = MappedFile(fd, 8192), mmap.mmap(fd, 8192, prot=mmap.PROT_READ)
os.truncate(path, 0)
print(bytes(memoryview(ours)[:1]), flush=True)
other[0]
"""


def test_sigbus_outside_a_mapping_still_kills_the_process(path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", OTHERS, str(path)], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGBUS, b"b'\\x00'\n"), ended.stderr
