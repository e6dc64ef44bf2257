"""How Spark's processes are connected to a store: with TLS, while they are busy otherwise, and not for ever."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.chaos.part import Part
from penstock.sdk.address import Address
from penstock.spark import connection as connection_module
from penstock.spark.connection import StoreAccess
from penstock.spark.errors import RequestFailed, StoreRefusesUs, StoreUnreachable
from penstock.spark.remote import RemoteLog
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.wire.log_messages import LogRead, QueueOffsets, QueueOffsetsFound, ReadLog, Segments, SegmentsFound
from store.wire.messages import Append, Appended
from tests.support.certificates import authority, vouched_for
from tests.support.server_process import free_port

LEASE_MS = 400
END = Segments(2**63 - 1)


@pytest.fixture
def port() -> int:
    return free_port()


def start(folder: Path, url: str, **wire: object) -> Part:
    settings = {"wire.lease_ms": LEASE_MS, "wire.heartbeat_ms": 50, **{f"wire.{name}": v for name, v in wire.items()}}
    return Part(folder / "store.log", ["store", "--data", str(folder / "data"), "--listen", url], settings)


@pytest.fixture
def part(tmp_path: Path, port: int) -> Iterator[Part]:
    part = start(tmp_path, f"tcp://127.0.0.1:{port}")
    yield part
    part.resume()
    part.kill()


def store_at(port: int, scheme: str = "penstock", **others: object) -> StoreAccess:
    return StoreAccess(Address.parse(f"{scheme}://127.0.0.1:{port}"), **others)  # type: ignore[arg-type]


def test_long_computation_keeps_its_connection(part: Part, port: int) -> None:
    with store_at(port).connect() as connection:
        end = connection.call(END, SegmentsFound)
        threading.Event().wait(3 * LEASE_MS / 1000)
        assert connection.call(END, SegmentsFound) == end
        assert part.metric("penstock_wire_leases_ended_total") == 0
        assert part.metric("penstock_wire_connections_opened_total") == 1


def test_idle_connection_is_closed_and_made_again(part: Part, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IDLE_S", 0.3)
    with store_at(port).connect() as connection:
        end = connection.call(END, SegmentsFound)
        deadline_s = time.monotonic() + 20
        while part.metric("penstock_wire_connections"):
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.05)
        assert connection.call(END, SegmentsFound) == end
        assert part.metric("penstock_wire_connections_opened_total") == 2
        assert part.metric("penstock_wire_leases_ended_total") == 0


def test_unwanted_answers_asked_ahead_are_skipped(part: Part, port: int) -> None:
    with store_at(port).connect() as connection:
        end = connection.call(END, SegmentsFound)
        connection.ask_ahead(ReadLog(0, 100))
        assert connection.call(END, SegmentsFound) == end
        connection.ask_ahead(ReadLog(0, 100))
        assert connection.call(ReadLog(0, 100), LogRead).log_end == end.log_end


def test_a_store_that_stands_still_or_is_away(part: Part, port: int) -> None:
    with store_at(port, patience_s=20.0).connect() as connection:
        end = connection.call(END, SegmentsFound)
        part.pause()
        resumed = threading.Timer(1, part.resume)
        resumed.start()
        assert connection.call(END, SegmentsFound) == end
        part.restart()
        assert connection.call(END, SegmentsFound).log_base == 0
    part.kill()
    started_s = time.monotonic()
    with pytest.raises(StoreUnreachable, match=r"cannot connect \(Connection refused\); is it running\?"):
        store_at(port, patience_s=0.5).connect().call(END, SegmentsFound)
    assert time.monotonic() - started_s >= 0.5


def test_request_that_the_store_refuses(part: Part, port: int) -> None:
    with store_at(port).connect() as connection, pytest.raises(RequestFailed) as raised:
        connection.call(QueueOffsets(0, ["t"] * 501), QueueOffsetsFound)
    assert raised.value.code == "bad_request"


def test_a_refused_append_can_be_sent_again(part: Part, port: int) -> None:
    good, bad = RecordBatch(), RecordBatch()
    good.append(RecordType.MESSAGE, b"", topic=b"t")
    bad.append(RecordType.MESSAGE, b"", topic=b"+")
    with store_at(port).connect("producer:test") as connection:
        for _ in range(3):
            with pytest.raises(RequestFailed, match="wildcard in a topic"):
                connection.call(Append(1), Appended, bytes(bad))
            connection.call(END, SegmentsFound)
        stored = connection.call(Append(1), Appended, bytes(good))
        assert stored.end > stored.start
    part.restart()
    with store_at(port).connect("producer:test") as connection:
        assert connection.call(Append(1), Appended, bytes(good)) == Appended(0, 0)
        assert connection.call(END, SegmentsFound).log_end == stored.end


def test_tls(tmp_path: Path, port: int) -> None:
    trusted = authority(tmp_path, "ours")
    made = vouched_for(tmp_path, "store", "IP:127.0.0.1", trusted)
    other = authority(tmp_path, "other")
    part = start(tmp_path, f"tls://127.0.0.1:{port}", tls_certificate=made.certificate, tls_key=made.key)
    try:
        log = RemoteLog(store_at(port, "penstocks", ca_file=str(trusted.certificate)))
        assert list(log.messages(0, log.end())) == []
        threading.Event().wait(3 * LEASE_MS / 1000)
        assert log.base() == 0
        log.close()
        assert part.metric("penstock_wire_leases_ended_total") == 0
        stranger = RemoteLog(store_at(port, "penstocks", ca_file=str(other.certificate)))
        with pytest.raises(StoreRefusesUs, match=r"certificate is not trusted .*; give tlsCaFile"):
            stranger.base()
        with pytest.raises(StoreUnreachable):
            RemoteLog(store_at(port, patience_s=0.0)).base()
    finally:
        part.kill()
