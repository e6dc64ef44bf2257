"""Broken clients, by the thousand, in one process: no unexpected error, and no effect on other clients."""

import logging
import random
from pathlib import Path

import pytest

from gateway.mqtt.packets import PingReq, PingResp
from tests.support.mqtt_bench import Bench, WallClock
from tests.support.mqtt_mutations import must_be_closed, stream

STREAMS = 2_500


@pytest.mark.parametrize("seed", [1, 2])
def test_broken_clients_end_and_harm_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    rng = random.Random(seed)
    bench = Bench(tmp_path, WallClock(monkeypatch))
    witness = bench.connect("witness", keep_alive_s=0)
    witness.subscribe("witness/+", qos=1)
    caplog.set_level(logging.ERROR)
    for number in range(STREAMS):
        data = stream(rng)
        client = bench.client()
        cut = rng.randrange(len(data) + 1)
        for chunk in (data[:cut], data[cut:]):
            client.feed(chunk)
            if rng.random() < 0.5:
                bench.run()
        bench.run()
        assert client.is_closed == must_be_closed(data), (number, data)
        client.lose()
        if number % 100 == 0:
            bench.pass_time(1)
        witness.publish_whole(f"witness/{number}", b"%d" % number, 0)
        assert witness.take() == [b"%d" % number]
    witness.send(PingReq())
    assert witness.received() == [PingResp()]
    assert caplog.records == []
    bench.close()
