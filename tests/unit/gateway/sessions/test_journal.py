"""Records that go to the disk at once because a client waits for them, and those that take a moment longer."""

from tests.support.mqtt_bench import Bench, Client, connect_packet
from tests.support.stores import wait_until
from tests.unit.conftest import StartBench


def leave_a_session(bench: Bench) -> None:
    """A client whose session stays loses its connection, which nobody waits for."""
    client = Client(bench, 4)
    client.send(connect_packet("a", 4, clean_start=False))
    bench.wait_safe()
    client.lose()
    bench.run()


def test_the_end_of_a_session_is_safe_by_the_next_tick(start_bench: StartBench) -> None:
    bench = start_bench(flush="sync")
    leave_a_session(bench)
    bench.pass_time()
    wait_until(lambda: bench.store.safe == bench.store.end)


def test_awaited_records_are_synced_without_waiting_for_a_tick(start_bench: StartBench) -> None:
    """Also for what was stored in an earlier turn, in which nobody waited for it."""
    bench = start_bench(flush="sync")
    other = bench.connect("b", 4)
    leave_a_session(bench)
    done: list[bool] = []
    bench.broker.journal.when_safe(other.connection, lambda: done.append(True))
    bench.run()
    wait_until(lambda: bench.store.safe == bench.store.end)
    bench.hub.safe_advanced()
    bench.run()
    assert done == [True]
