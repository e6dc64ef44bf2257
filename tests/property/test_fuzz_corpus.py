"""The corpus of the coverage-guided run, without its tools: each is a packet that comes back, or a ProtocolError."""

from pathlib import Path

from tests.fuzz.check import check

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"


def test_the_corpus() -> None:
    inputs = sorted(CORPUS.iterdir())
    assert len(inputs) > 40
    for path in inputs:
        check(path.read_bytes())
