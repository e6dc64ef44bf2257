"""What a store has that the log of the cluster has not."""

from pathlib import Path

import pytest

from penstock.cluster.recovering import differs_at
from store.files.segment import segment_path

WHOLE = {0: b"a" * 104, 104: b"b" * 48, 152: b"c" * 32}


def folder(path: Path, segments: dict[int, bytes]) -> Path:
    path.mkdir()
    for base, data in segments.items():
        segment_path(path, base).write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("copy", "end", "differs"),
    [
        (WHOLE, 184, None),
        (WHOLE | {152: b"c" * 32 + b"more"}, 188, None),
        ({base: data for base, data in WHOLE.items() if base}, 184, None),  # its retention has dropped one
        (WHOLE, 170, 170),
        (WHOLE | {152: b"c" * 18}, 170, 170),
        (WHOLE | {104: b"b" * 47 + b"d"}, 184, 151),
        ({0: b"a" * 104, 104: b"b" * 80}, 184, 152),  # it began no segment there
        ({0: b"x"}, 1, 0),
    ],
)
def test_the_first_byte_that_the_copy_has_not(
    tmp_path: Path, copy: dict[int, bytes], end: int, differs: int | None
) -> None:
    own = folder(tmp_path / "own", WHOLE | {152: WHOLE[152] + bytes(1_000)})  # zeros behind the log
    assert differs_at(own, folder(tmp_path / "copy", copy), 184, end) == differs


@pytest.mark.parametrize(
    ("changed", "damaged", "end", "differs"),
    [
        ([(104, 110)], [(104, 110)], 184, None),
        ([(100, 106)], [(100, 106)], 184, None),  # over the end of a segment
        ([(104, 110)], [(104, 106)], 184, 106),
        ([(104, 110), (120, 121)], [(120, 130), (104, 110)], 184, None),
        ([], [(104, 184)], 150, None),
        ([], [(104, 170)], 160, 170),  # it has more than the copy
    ],
)
def test_damaged_bytes_are_nothing_to_lose(
    tmp_path: Path,
    changed: list[tuple[int, int]],
    damaged: list[tuple[int, int]],
    end: int,
    differs: int | None,
) -> None:
    log = bytearray(b"".join(WHOLE.values()))
    for start, to in changed:
        log[start:to] = b"?" * (to - start)
    own = folder(tmp_path / "own", {base: bytes(log[base : base + len(data)]) for base, data in WHOLE.items()})
    assert differs_at(own, folder(tmp_path / "copy", WHOLE), 184, end, damaged) == differs
