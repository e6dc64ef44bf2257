"""A power failure may keep any unsynced sector of the log's end. Records that were whole before it stay."""

import random
import shutil
from pathlib import Path

import pytest

from loadtest.chaos.load import ChaosLoad
from store.files.marks import read_marks
from store.files.segment import segment_paths
from store.settings import StoreSettings
from tests.conftest import ServerFactory
from tests.crash.replayed import assert_index_equals_replay, payloads
from tests.support.stores import SOCKETS

SETTINGS = StoreSettings(segment_bytes=262_144)
FAILURES = 15
SECTOR_BYTES = 512


@pytest.mark.asyncio
async def test_sectors_lost_at_the_end_of_the_log(
    penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    """The index may know more than is left of the log then; it must not make up for it."""
    server = penstock_server(flush="async", settings=small)
    load = ChaosLoad(server, seed)
    load.publisher("p", ("power/a", 1), ("power/b", 2))
    load.subscriber("s", {"power/+": 2})
    async with load.running():
        await load.upset(2)
    server.kill()
    whole = payloads(server.data, SETTINGS, tmp_path)
    for _ in range(FAILURES):
        damaged = tmp_path / "damaged"
        shutil.copytree(server.data, damaged, ignore=SOCKETS)
        marks = read_marks(damaged / "log")
        assert marks is not None
        lose_sectors(segment_paths(damaged / "log")[-1], marks.flushed, load.rng)
        left = payloads(damaged, SETTINGS, tmp_path)
        assert left == whole[: len(left)]
        assert_index_equals_replay(damaged, SETTINGS, tmp_path)
        shutil.rmtree(damaged)


def lose_sectors(segment: Path, flushed: int, rng: random.Random) -> None:
    """Some sectors behind what was synced never reached the disk: they are zeros, or what stood there before."""
    data = bytearray(segment.read_bytes())
    sectors = len(data.rstrip(b"\0")) // SECTOR_BYTES + 1
    confirmed = max(0, flushed - int(segment.stem)) // SECTOR_BYTES + 1
    if confirmed >= sectors:
        return
    first = rng.randrange(confirmed, sectors)
    for sector in range(first, sectors):
        if sector == first or rng.random() < 0.5:
            data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES] = bytes(SECTOR_BYTES)
    if first:  # the header was synced when the file was made
        segment.write_bytes(data)
