"""Clients of a store whose rights another server decides: over a real HTTP server, and the wire."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
import pytest

from store.wire import messages as wire
from store.wire import rights_messages as of_rights
from store.wire.base import WireMessage
from store.wire.messages import FailureCode, Role
from tests.support.http_answers import HttpAnswers
from tests.support.mqtt_packet_client import write_secret
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import WirePeer
from tests.support.stores import batch_of, wait_until

SECRET = "a secret of tests that is long enough"


class Site:
    """A store, and the server that decides: `status` 200 allows what is no action and filter in `denied`."""

    def __init__(self, folder: Path) -> None:
        self.status = 200
        self.denied: set[tuple[str, str]] = set()
        self.hook = HttpAnswers(lambda _, body: (self.status, {"result": self._result(body)}))
        settings = {
            "auth.jwt_secret_file": write_secret(folder / "secret", SECRET),
            "auth.jwt_require_exp": "false",
            "auth.http_permission_url": f"{self.hook.url}/may",
            "auth.http_cache_s": 1,
            "auth.http_breaker_pause_ms": 10,
        }
        self.store = StoreProcess(folder, settings=settings)

    def _result(self, body: dict[str, str]) -> str:
        return "deny" if (body["action"], body["topic"]) in self.denied else "allow"

    def client(self, name: str, user: str = "ann") -> WirePeer:
        return self.store.connect(name, Role.CLIENT, password=jwt.encode({"sub": user}, SECRET, "HS256"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.store.close()
    site.hook.close()


SEQUENCES = itertools.count(1)
RECORDS = bytes(batch_of(b"x", topic=b"line/1"))
REQUESTS: dict[str, Callable[[WirePeer], WireMessage]] = {
    "publish": lambda peer: peer.call(wire.Publish(next(SEQUENCES), wire.Wait.STORED), RECORDS),
    "follow": lambda peer: peer.call(wire.Follow("line/#", False, -1, False)),
    "read": lambda peer: peer.call(wire.Locate("line/#", "earliest")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_without_an_answer_nothing_is_allowed(site: Site, name: str) -> None:
    """An answer that did not come was taken for an allowed one."""
    peer = site.client("c")
    site.status = 503
    for _ in range(10):  # also where the server is not asked any more for a while
        refused = REQUESTS[name](peer)
        assert isinstance(refused, wire.Failed)
        assert refused.code == FailureCode.NOT_PERMITTED
    assert peer.call(of_rights.Permitted("publish", ["line/2"])) == of_rights.PermittedTold([False])
    site.status = 200
    wait_until(lambda: not isinstance(REQUESTS[name](peer), wire.Failed))
