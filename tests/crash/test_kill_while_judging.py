"""A `penstock store` whose rules are many: what one client asks about thousands of topics is judged in steps, others
are served in between, and a kill between two steps stores nothing; sent again it is stored once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from store.errors import WireError
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.wire.client_messages import Publish, Published, Wait
from store.wire.log_messages import MOST_TOPICS, QueueOffsets, QueueOffsetsFound
from store.wire.messages import Append, Appended, Retained, RetainedFound, Role, WireMessage
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import WirePeer

RULES = 1_000
TOPICS = 2_900
SERVED = 5
"""Round trips of another client; there is time for a hundred, and for one where all is judged in one turn."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    rules = tmp_path / "rules.toml"
    rule = '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["{}"]\n'
    rules.write_text("".join(rule.format(f"no{number}/+/#") for number in range(RULES)) + rule.format("#"))
    found = StoreProcess(tmp_path, settings={"auth.permissions_file": rules, "auth.allow_anonymous": "true"})
    yield found
    found.close()


def topics() -> bytes:
    batch = RecordBatch()
    for number in range(TOPICS):
        batch.append(RecordType.MESSAGE, b"x", topic=b"t/%d" % number)
    return bytes(batch)


def served_between(store: StoreProcess, peer: WirePeer, request: WireMessage, records: bytes = b"") -> int:
    """Sends a request, and serves another client. The number of the request, which has no answer so far."""
    other = store.connect("other", Role.CLIENT)
    other.call(Retained("other", "", 1))
    number = peer.ask(request, records)
    for _ in range(SERVED):
        assert isinstance(other.call(Retained("other", "", 1)), RetainedFound)
    return number


def is_answered(peer: WirePeer, number: int) -> bool:
    """What came so far; a killed store sends no more."""
    with suppress(WireError):
        peer.answer(number)
        return True
    return False


@pytest.mark.parametrize("kind", [Publish, Append])
def test_a_kill_between_steps(store: StoreProcess, kind: type[Publish | Append]) -> None:
    request = Publish(1, Wait.STORED) if kind is Publish else Append(1)
    peer = store.connect("peer", Role.CLIENT)
    number = served_between(store, peer, request, topics())
    store.kill()
    assert not is_answered(peer, number)
    store.start()
    again = store.connect("peer", Role.CLIENT)
    assert again.welcome.appended == 0
    first, second = (again.call(request, topics()) for _ in range(2))
    assert isinstance(first, Published | Appended)
    assert second == (first if kind is Publish else Appended(0, 0))
    behind = again.call(Publish(2, Wait.STORED), topics())
    assert isinstance(behind, Published)
    assert behind.queue_offsets == [1] * TOPICS
    assert "Traceback" not in store.log_text()


def test_topic_look_ups_do_not_delay_other_clients(store: StoreProcess) -> None:
    peer = store.connect("peer", Role.CLIENT)
    number = served_between(store, peer, QueueOffsets(0, [f"t/{number}" for number in range(MOST_TOPICS)]))
    peer.ping()
    assert peer.answer(number) == QueueOffsetsFound([0] * MOST_TOPICS)
