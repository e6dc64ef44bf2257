"""Clients that leave, die, sleep and come back, and a server that is killed meanwhile."""

import subprocess
from functools import partial

import pytest

from tests.conftest import IN_ALL_TOPOLOGIES, QUICK, ServerFactory, SharedServers
from tests.interop.programs import PUBLISHERS, PahoClient, Subscriber, mark_ready, mosquitto_sub, run
from tests.support.server_process import PenstockServer
from tests.support.stores import wait_until

pytestmark = IN_ALL_TOPOLOGIES


@pytest.fixture
def server(penstock_server: ServerFactory) -> PenstockServer:
    server = penstock_server(settings=QUICK)
    mark_ready(server.port)
    return server


@pytest.fixture
def shared(shared_server: SharedServers) -> PenstockServer:
    """For tests that do not kill it."""
    server = shared_server()
    mark_ready(server.port)
    return server


@pytest.mark.parametrize("version", [4, 5])
def test_the_will_of_a_killed_program(shared: PenstockServer, version: int) -> None:
    server = shared
    by_paho = PahoClient(server.port).connect().subscribe("will/#", 2)
    heirs: list[Subscriber] = [mosquitto_sub(server.port, "will/#", 1), by_paho]
    will = ["--will-topic", "will/x", "--will-payload", "gone", "--will-qos", "2", "--will-retain"]
    mosquitto_sub(server.port, "nothing", 0, *will, version=version).kill()
    for heir in heirs:
        assert heir.messages(1) == [("will/x", b"gone")]
    late = run("mosquitto_sub", "-p", str(server.port), "-t", "will/#", "-C", "1", "-F", "%t %p %r")
    assert late == b"will/x gone 1\n"
    run("mosquitto_pub", "-p", str(server.port), "-t", "will/x", "-n", "-r", "-q", "1")


def test_the_will_of_a_lost_connection(shared: PenstockServer) -> None:
    server = shared
    heir = PahoClient(server.port).connect().subscribe("will/#", 1)
    for number, version in enumerate((4, 5), 1):
        client = PahoClient(server.port, version, "dying")
        client.client.will_set("will/paho", b"version %d" % version, 1)
        client.connect()
        client.kill()
        heir.raw_messages(number)  # what another gateway sends may come first
    polite = PahoClient(server.port, 5, "polite")
    polite.client.will_set("will/paho", b"never", 1)
    polite.connect().leave()
    run("mosquitto_pub", "-p", str(server.port), "-t", "will/end", "-m", "end", "-q", "1")
    expected = [("will/paho", b"version 4"), ("will/paho", b"version 5"), ("will/end", b"end")]
    assert heir.messages(3) == expected


def test_the_will_of_a_client_that_a_killed_server_lost(server: PenstockServer) -> None:
    will = ["--will-topic", "will/x", "--will-payload", "gone", "--will-qos", "1", "--will-retain"]
    client = mosquitto_sub(server.port, "nothing", 0, *will)
    server.kill()
    client.kill()
    server.restart()
    assert run("mosquitto_sub", "-p", str(server.port), "-t", "will/#", "-C", "1") == b"gone\n"


DURABLE = {
    "mosquitto-3": ["-V", "mqttv311", "-c"],
    "mosquitto-5": ["-V", "mqttv5", "-c", "-x", "3600"],
}


@pytest.mark.parametrize("name", DURABLE)
@pytest.mark.parametrize(("qos", "killed"), [(1, False), (2, True)])
@pytest.mark.catalogue("F20")
def test_a_program_that_was_away_gets_everything_once(
    server: PenstockServer, name: str, qos: int, killed: bool
) -> None:
    command = ["mosquitto_sub", "-p", str(server.port), "-i", "away", "-q", "2", "-t", "away/#", *DURABLE[name]]
    run(*command, "-E")
    expected = []
    for publisher, publish in PUBLISHERS.items():
        payloads = [f"{publisher} {i}".encode() for i in range(20)]
        publish(server.port, f"away/{publisher}", payloads, qos)
        expected += payloads
    if killed:
        server.restart()
    assert run(*command, "-C", str(len(expected))).splitlines() == expected


def has_left(server: PenstockServer, client_id: str, times: int) -> bool:
    return server.log_text().count(f"client {client_id} disconnected") >= times


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_paho_comes_back_to_its_session(server: PenstockServer, version: int, qos: int) -> None:
    def device() -> PahoClient:
        return PahoClient(server.port, version, "device", expiry_s=3_600, clean=False).connect()

    client = device().subscribe("back/#", qos)
    assert client.session_present is False
    client.leave()
    sent: list[bytes] = []
    for number, restart in enumerate((False, True, True)):
        payloads = [b"%d" % (len(sent) + i) for i in range(200)]
        PUBLISHERS["paho-5"](server.port, "back/1", payloads, qos)
        sent += payloads
        if restart:
            server.restart()
        client = device()
        assert client.session_present is True
        assert [message.payload for message in client.raw_messages(200)] == payloads
        assert {message.qos for message in client.raw_messages(200)} == {qos}
        client.acknowledge()
        client.leave()
        # Acknowledgements that a server had not read when it was killed come again, as they should.
        wait_until(partial(has_left, server, "device", number + 2), 60)
    clean = PahoClient(server.port, version, "device").connect()
    assert clean.session_present is False
    clean.leave()


@pytest.mark.parametrize("version", [4, 5])
def test_paho_reconnects_by_itself_to_a_killed_server(server: PenstockServer, version: int) -> None:
    client = PahoClient(server.port, version, "device", expiry_s=3_600, clean=False)
    client.client.reconnect_delay_set(1, 1)
    client.connect().subscribe("again", 1)
    for number in range(2):
        client.session_present = None
        server.restart()
        PUBLISHERS["mosquitto-5"](server.port, "again", [b"%d" % number], 1)
        assert client.distinct(number + 1) == [b"%d" % i for i in range(number + 1)]
    client.leave()


@pytest.mark.catalogue("G24")
def test_retained_messages_are_right_at_once_after_a_kill(server: PenstockServer) -> None:
    payloads = {f"kept/{i}": b"%d" % i for i in range(50)}
    publisher = PahoClient(server.port).connect()
    for topic, payload in payloads.items():
        publisher.publish(topic, [b"old", payload], 1, retain=True)
    publisher.publish("kept/7", [b""], 1, retain=True)
    server.restart()
    subscriber = PahoClient(server.port).connect().subscribe("kept/+", 0)
    found = {message.topic: message.payload for message in subscriber.raw_messages(49)}
    assert found == {topic: payload for topic, payload in payloads.items() if topic != "kept/7"}
    for client in (publisher, subscriber):
        client.client.loop_stop()
        client.client.disconnect()


def test_take_over_between_programs(shared: PenstockServer) -> None:
    server = shared
    first = PahoClient(server.port, 5, "same").connect().subscribe("t", 1)
    disconnects: list[int] = []
    first.client.on_disconnect = lambda *arguments: disconnects.append(arguments[3].value)
    command = ["mosquitto_sub", "-p", str(server.port), "-i", "same", "-V", "mqttv5", "-t", "ready/now", "-C", "1"]
    first.client.reconnect_on_failure = False  # type: ignore[attr-defined]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    first.client.loop_stop()
    assert 0x8E in disconnects
