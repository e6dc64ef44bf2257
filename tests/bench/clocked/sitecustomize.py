"""Python imports this at its start where PYTHONPATH names this folder: see tests/bench/turn_clock.py."""

from tests.bench.turn_clock import install

install()
