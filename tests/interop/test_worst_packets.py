"""The worst that one client may send: another one is answered meanwhile (tests/bench/worst.py has all of it)."""

from __future__ import annotations

import pytest

from tests.bench.worst import CASES, run
from tests.conftest import ServerFactory

LIMIT_MS = 100  # all of these took some 200 ms to 20 s; they take less than 5 on a quiet machine
QUICK = (
    "CONNECT: properties, too many",
    "PUBLISH: properties, too many",
    "PUBREL: unknown, tiny",
    "SUBSCRIBE: filters, too many",
    "SUBSCRIBE: filters, as many as a session may have",
    "SUBACK from a client",
)


@pytest.mark.skipif("sys.platform != 'linux'", reason="it takes the CPU clock of another process")
def test_another_client_is_answered_meanwhile(penstock_server: ServerFactory) -> None:
    server = penstock_server(flush="async")
    took = {name: run(server, CASES[name])[1].longest_ms for name in QUICK}
    assert max(took.values()) < LIMIT_MS, took
    assert "Traceback" not in server.log_text()
