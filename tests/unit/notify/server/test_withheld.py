"""Output waits for what it tells of; acknowledgements do not wait for what is appended behind them."""

from dataclasses import dataclass

from notify.server.line import UNSENT_BYTES, WireCounters
from notify.server.withheld import WithheldOutput


@dataclass
class LogPlaces:
    """Where a log ends, and up to where it is accepted."""

    end: int = 0
    safe: int = 0


def test_withheld_output_waits_for_the_log_end_of_its_time() -> None:
    log = LogPlaces()
    out = WithheldOutput(WireCounters(), lambda: None, lambda: 0.0, log)
    out.send(b"read ")
    assert out.collect() == [b"read "]  # all is accepted
    log.end = 100
    out.send(b"pushed ")
    assert out.collect() == []
    assert out.is_withholding
    log.end = 200
    out.send(b"later ")
    out.hold()
    out.send(b"acknowledged ")
    out.let_go()
    assert out.collect() == [b"acknowledged "]
    log.safe = 100
    assert out.collect() == [b"pushed "]
    log.safe = 200
    assert out.collect() == [b"later "]
    assert not out.is_withholding


def test_withheld_output_counts_as_unsent() -> None:
    log = LogPlaces()
    log.end = 100
    out = WithheldOutput(WireCounters(), lambda: None, lambda: 0.0, log)
    out.send(bytes(UNSENT_BYTES))
    assert out.collect() == []
    assert not out.has_room
    log.safe = 100
    out.collect()
    assert out.has_room
