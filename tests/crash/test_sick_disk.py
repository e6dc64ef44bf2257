"""A disk that is full, or fails, for a while: soon afterwards all clients are served again, and nothing is lost."""

import os
from pathlib import Path

import pytest

from tests.crash.sick_disk import PATIENCE_S, Fault, one_server, run

LASTS_S = 3.0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=pytest.mark.nightly) if each is Fault.INDEX else each for each in Fault],
)
async def test_everybody_is_served_afterwards(fault: Fault, tmp_path: Path, seed: int) -> None:
    """Many runs, in one process and apart: python -m tests.crash.sick_disk FAULT 30."""
    if fault == Fault.FULL and os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root (CI has it)")
    with one_server(fault, tmp_path, 2) as (server, trouble):
        outcome = await run(server, trouble, seed, LASTS_S)
        assert outcome.complaints == [], server.log_text()[-5_000:]
        assert max(outcome.new_client_s, outcome.suback_s) < PATIENCE_S, server.log_text()[-5_000:]
        if fault == Fault.INDEX:  # RocksDB does not write any more after that
            assert "could not be written for" in server.log_text()
