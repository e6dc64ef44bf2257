"""MQTT clients go on in the tier: replays, and sessions that were away for longer than the log keeps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from gateway.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from gateway.mqtt.reason_codes import ReasonCode
from notify.links.address import StoreAddress
from notify.local.tier import TIER_READER
from penstock.store_client import StoreClient
from store.files.segment import segment_paths
from store.wire.messages import Role
from store.wire.operator_messages import ListLogReaders, LogReadersListed
from tests.support.apart_server import ApartServer
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import PenstockServer, ServeOptions
from tests.tier.tier_process import SMALL, wait_until

DAY_S = 86_400
MOST_IN_FLIGHT = 65_535


@pytest.fixture(params=[pytest.param("serve", marks=pytest.mark.nightly), "apart"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PenstockServer]:
    settings = SMALL | {"tier.url": str(tmp_path / "fleet"), "tier.commit_s": 1}
    kind = ApartServer if request.param == "apart" else PenstockServer
    server = kind(tmp_path / "data", tmp_path / "log", ServeOptions(settings=settings))
    yield server
    server.kill()


class Publishing:
    """Messages that were acknowledged, to three topics in turn."""

    def __init__(self, server: PenstockServer) -> None:
        self.server = server
        self._rng = random.Random(1)
        self.sent: list[tuple[str, bytes]] = []

    def more(self, number: int, qos: int = 1) -> None:
        device = Device(self.server.port, "publisher")
        device.connect()
        for _ in range(number):
            topic, payload = f"line/{len(self.sent) % 3}/temp", b"%06d" % len(self.sent) + self._rng.randbytes(3_000)
            device.publish(topic, payload, qos)
            if qos == 2:
                device.send(PubRel(device.next(PubRec).packet_id))
                device.next(PubComp)
            else:
                device.next(PubAck)
            self.sent.append((topic, payload))
        device.close()

    def until_dropped(self, qos: int = 1) -> None:
        """Until retention has dropped most of what was sent so far."""
        segments = self.server.data / "log"
        goal = max(int(path.stem) for path in segment_paths(segments))
        while min(int(path.stem) for path in segment_paths(segments)) <= goal:
            self.more(50, qos)


class Subscriber:
    """A device that acknowledges what it gets."""

    def __init__(
        self, server: PenstockServer, client_id: str, expiry_s: int = DAY_S, receive_maximum: int = MOST_IN_FLIGHT
    ) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.device = Device(server.port, client_id)
        self.device.connect(clean_start=not expiry_s, session_expiry_interval=expiry_s, receive_maximum=receive_maximum)

    def take(self, number: int) -> list[tuple[str, bytes]]:
        """The next messages."""
        while len(self.got) < number:
            packet = self.device.receive()
            if isinstance(packet, Publish):
                if not packet.dup or (packet.topic_name, packet.payload) not in self.got:
                    self.got.append((packet.topic_name, packet.payload))
                if packet.qos == 1:
                    self.device.send(PubAck(packet.packet_id or 0))
                elif packet.qos == 2:
                    self.device.send(PubRec(packet.packet_id or 0))
            elif isinstance(packet, PubRel):
                self.device.send(PubComp(packet.packet_id))
            else:
                raise AssertionError(packet)
        return self.got


@pytest.fixture
def publishing(server: PenstockServer) -> Publishing:
    return Publishing(server)


def by_topic(messages: list[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    ordered = sorted(messages, key=lambda message: message[0])
    return {topic: [payload for _, payload in found] for topic, found in groupby(ordered, lambda message: message[0])}


@pytest.mark.parametrize("topic_filter", ["line/#", "line/+/temp", "+/1/temp", "line/1/temp"])
def test_a_replay_begins_in_the_tier(server: PenstockServer, publishing: Publishing, topic_filter: str) -> None:
    publishing.more(20)
    publishing.until_dropped()
    expected = [each for each in publishing.sent if each[0] == "line/1/temp" or not topic_filter.count("1")]
    subscriber = Subscriber(server, "history", expiry_s=0)
    assert subscriber.device.subscribe(topic_filter, 1, "earliest") == ReasonCode.GRANTED_QOS_1
    assert subscriber.take(len(expected)) == expected
    publishing.more(3)
    assert subscriber.take(len(expected) + 1)[-1] in publishing.sent[-3:]


def test_a_replay_at_qos_0_misses_nothing_that_retention_takes_meanwhile(tmp_path: Path) -> None:
    """The client takes nothing for a while, so that the log begins behind the place where the replay was to end."""
    settings = SMALL | {"tier.url": str(tmp_path / "fleet"), "tier.commit_s": 1}
    server = PenstockServer(tmp_path / "data", tmp_path / "log", ServeOptions(settings=settings))
    try:
        publishing = Publishing(server)
        publishing.more(2_500)  # more than sockets hold
        publishing.until_dropped()
        subscriber = Subscriber(server, "history", expiry_s=0)
        assert subscriber.device.subscribe("line/#", 0, "earliest") == ReasonCode.SUCCESS
        publishing.until_dropped()
        publishing.until_dropped()
        publishing.more(3)
        assert subscriber.take(len(publishing.sent)) == publishing.sent
    finally:
        server.kill()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_that_was_away_for_longer_than_the_log_keeps_misses_nothing(
    server: PenstockServer, publishing: Publishing, qos: int
) -> None:
    filters = ["line/0/temp", "line/#", "+/1/temp"]
    device = Subscriber(server, "away").device
    for topic_filter in filters:
        assert device.subscribe(topic_filter, qos) == qos
    device.close()
    publishing.more(20, qos)
    publishing.until_dropped(qos)
    subscriber = Subscriber(server, "away")
    subscriber.take(10)
    subscriber.device.close()  # in the middle of it
    again = Subscriber(server, "away")
    again.got = subscriber.got
    server.kill()
    server.restart()
    last = Subscriber(server, "away")
    last.got = again.got
    publishing.until_dropped(qos)  # also what its queues had when it connected
    got = last.take(len(publishing.sent))
    assert by_topic(list(dict.fromkeys(got))) == by_topic(publishing.sent)
    if qos == 2:
        assert len(got) == len(set(got))


def test_a_slow_subscriber_that_retention_has_passed_misses_nothing(
    server: PenstockServer, publishing: Publishing
) -> None:
    slow = Subscriber(server, "slow")
    assert slow.device.subscribe("line/#", 1) == ReasonCode.GRANTED_QOS_1
    publishing.more(20)
    publishing.until_dropped()
    publishing.until_dropped()
    got = slow.take(len(publishing.sent))
    assert got == publishing.sent


def test_a_slow_subscriber_to_a_topic_of_which_the_log_keeps_nothing_misses_nothing(
    server: PenstockServer, publishing: Publishing
) -> None:
    slow = Subscriber(server, "slow", receive_maximum=1)
    assert slow.device.subscribe("quiet/+", 1) == ReasonCode.GRANTED_QOS_1
    device = Device(server.port, "quiet")
    device.connect()
    quiet = [("quiet/temp", b"%d" % number) for number in range(5)]
    for topic, payload in quiet:
        device.publish(topic, payload, 1)
        device.next(PubAck)
    device.close()
    publishing.more(20)
    publishing.until_dropped()
    publishing.until_dropped()
    assert slow.take(5) == quiet


@pytest.mark.catalogue("N51")
@pytest.mark.parametrize("topic_filter", ["line/#", "line/+/temp", "line/1/temp"])
def test_a_replay_reads_what_the_tier_has_there_if_that_is_wanted(tmp_path: Path, topic_filter: str) -> None:
    table = tmp_path / "fleet"
    settings = {"tier.url": str(table), "tier.commit_s": 1, "tier.reads": "force"}
    server = PenstockServer(tmp_path / "data", tmp_path / "log", ServeOptions(settings=settings))
    try:
        publishing = Publishing(server)
        publishing.more(30)
        wait_until(lambda: rows_in(table) == 30)
        wait_until(lambda: place_of_tier(server) > 0)  # from now on the store asks the tier
        publishing.more(3)
        expected = [each for each in publishing.sent if each[0] == "line/1/temp" or not topic_filter.count("1")]
        away = [path.rename(path.with_suffix(".away")) for path in table.glob("day=*/*.parquet")]
        subscriber = Subscriber(server, "history", expiry_s=0)
        assert subscriber.device.subscribe(topic_filter, 1, "earliest") == ReasonCode.GRANTED_QOS_1
        wait_until(lambda: "a read of history fails" in (tmp_path / "log").read_text())
        for path in away:
            path.rename(path.with_suffix(".parquet"))
        assert subscriber.take(len(expected)) == expected
    finally:
        server.kill()


def place_of_tier(server: PenstockServer) -> int:
    """log_offset up to which the tier has the log, as the store knows it."""
    address = StoreAddress.parse(f"unix://{server.data / 'operator.sock'}")
    with StoreClient(address, "", None, Role.OPERATOR) as operator:
        readers = operator.call(ListLogReaders(), LogReadersListed).readers
    return max(reader.log_offset for reader in readers if reader.name == TIER_READER)


def rows_in(table: Path) -> int:
    try:
        return int(DeltaTable(table).to_pyarrow_table(columns=["log_offset"]).num_rows)
    except TableNotFoundError:
        return 0


@pytest.mark.parametrize("topic_filter", ["line/#", "line/1/temp"])
def test_a_shared_subscription_goes_on_in_the_tier(
    server: PenstockServer, publishing: Publishing, topic_filter: str
) -> None:
    device = Subscriber(server, "member").device
    assert device.subscribe(f"$share/g/{topic_filter}", 1) == ReasonCode.GRANTED_QOS_1
    device.close()
    publishing.more(20)
    publishing.until_dropped()
    expected = [each for each in publishing.sent if each[0] == "line/1/temp" or not topic_filter.count("1")]
    member = Subscriber(server, "member")
    member.take(10)
    member.device.close()
    server.kill()
    server.restart()
    last = Subscriber(server, "member")
    last.got = member.got
    while len(set(last.got)) < len(expected):  # what the member had when it went comes again
        last.take(len(last.got) + 1)
    assert sorted(set(last.got)) == sorted(expected)
    publishing.more(3)
    assert last.take(len(last.got) + 1)[-1] in publishing.sent[-3:]


def test_a_shared_subscription_begins_in_the_tier(server: PenstockServer, publishing: Publishing) -> None:
    publishing.more(20)
    publishing.until_dropped()
    member = Subscriber(server, "member")
    assert member.device.subscribe("$share/g/line/#", 1, "earliest") == ReasonCode.GRANTED_QOS_1
    assert member.take(len(publishing.sent)) == publishing.sent
