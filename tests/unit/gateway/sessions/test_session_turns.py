"""Sessions that end and go on in one turn of the loop: what is left of them is in the log in time, and no sooner."""

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import ConnAck, Disconnect, PubAck
from store.records._records import RecordBatch
from tests.support.mqtt_bench import Bench, Client, connect_packet


def fed(bench: Bench, client_id: str) -> Client:
    """A client whose CONNECT has come; the turn goes on."""
    client = bench.client()
    client.feed(encode(connect_packet(client_id, clean_start=False, session_expiry_interval=100), 5))
    return client


def test_sessions_that_open_and_close_in_one_turn_share_appends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs little, however many there are: a write and a wake-up of the thread that syncs are the turn's.

    A turn ends early on a machine that is busy.
    """
    bench.run()
    appends: list[int] = []
    append = bench.store.log.append

    def counted(batch: RecordBatch, from_reserve: bool, is_awaited: bool) -> int:
        appends.append(batch.size)
        return append(batch, from_reserve, is_awaited)

    monkeypatch.setattr(bench.store.log, "append", counted)
    clients = [fed(bench, f"client-{number}") for number in range(20)]
    bench.run()
    assert all(client.first(ConnAck) for client in clients)
    for client in clients:
        client.feed(encode(Disconnect(), 5))
    bench.run()
    assert all(client.is_closed for client in clients)
    assert len(appends) < 20  # of 40


@pytest.mark.parametrize("goodbye", [True, False])
def test_away_and_back_in_one_turn_loses_and_repeats_nothing(bench: Bench, goodbye: bool) -> None:
    """Its end is in the log before the session is claimed, with what was in flight and how far it was acknowledged."""
    first = bench.durable("a", session_expiry_interval=100)
    first.subscribe("t", qos=1)
    for number in range(3):
        bench.connect("b").publish("t", b"%d" % number, qos=1)
    packets = first.messages()
    first.feed(encode(PubAck(packets[0].packet_id or 0), 5))
    if goodbye:
        first.feed(encode(Disconnect(), 5))
    again = fed(bench, "a")
    bench.run()
    assert first.is_closed
    assert again.first(ConnAck).session_present
    sent = again.messages()
    assert [(each.payload, each.packet_id) for each in sent] == [(each.payload, each.packet_id) for each in packets[1:]]
