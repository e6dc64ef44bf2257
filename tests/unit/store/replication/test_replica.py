"""The rules of one store of a cluster, call by call."""

import random

import pytest

from store.errors import NotLeading, PartitionUnusable, ReplicationBehind
from store.replication.actions import (
    AcceptedTo,
    BeginLeading,
    DiscardState,
    FollowLeader,
    MayEnd,
    ReplicaAction,
    SendFrame,
    WriteAccepted,
)
from store.replication.frames import FRAME_HEADER_BYTES, FrameKind, Leader, LogFrame, epoch_frame
from store.replication.judging import ReplicaMark
from store.replication.replica import Actions, Replica, ReplicaRole
from store.replication.sending import SendLimits
from tests.support.cluster_checks import ClusterChecks
from tests.support.cluster_network import SimulatedKafka, SimulatedTime
from tests.support.cluster_store import Clock, SimulatedStore, Surroundings

ME, OTHER = Leader("me:7700", b"m" * 16), Leader("other:7700", b"o" * 16)
LIMITS = SendLimits(gather_bytes=20, record_bytes=FRAME_HEADER_BYTES + 16, waiting_bytes=100)
LED_S = 1.0


def frames(actions: Actions) -> list[LogFrame]:
    return [action.frame for action in actions if isinstance(action, SendFrame)]


def others(actions: Actions) -> list[ReplicaAction]:
    return [action for action in actions if not isinstance(action, SendFrame)]


def data(base: int, data: bytes, epoch: int = 1) -> bytes:
    return LogFrame(FrameKind.DATA, epoch, base, 1, data).encode()


def leading(now_s: float = LED_S) -> Replica:
    """A leader of epoch 1 whose first heartbeat is accepted, at offset 2 of the partition."""
    replica = Replica(ME, 0.0, ReplicaMark(0, 0, 0, 0, None), limits=LIMITS)
    replica._silence.stops()
    (asked,) = frames(replica.fetched(now_s, [], is_end=True))
    actions = replica.fetched(now_s, [(1, asked.encode())], is_end=True)
    assert others(actions) == [BeginLeading(1, 0)]
    (heartbeat,) = frames(actions)
    replica._serves_from_s = now_s
    assert replica.produced(now_s, heartbeat, 2) == []
    assert replica.serves(now_s)
    assert not replica.reads
    return replica


def test_a_standby_takes_over_what_nobody_leads() -> None:
    replica = Replica(ME, 0.0)
    for at in range(40):
        assert replica.fetched(at / 10, [], is_end=True) == []
    (asked,) = frames(replica.fetched(4.0, [], is_end=True))
    assert (asked.kind, asked.epoch, asked.leader) == (FrameKind.EPOCH, 1, ME)
    assert replica.fetched(4.5, [], is_end=True) == []
    assert frames(replica.fetched(5.0, [], is_end=True)) == [asked]  # again: it was not seen
    actions = replica.fetched(5.1, [(0, asked.encode()), (1, asked.encode())], is_end=True)
    assert actions[0] == BeginLeading(1, 0)
    assert replica.role is ReplicaRole.LEADER
    assert replica.serves(5.9)
    assert not replica.serves(6.0)  # the frame was first sent at 4.0


def test_a_standby_writes_what_is_accepted_and_follows_whoever_leads() -> None:
    replica = Replica(ME, 0.0)
    records = [epoch_frame(1, 0, OTHER).encode(), data(0, b"12345678"), data(0, b"12345678"), data(8, b"abc")]
    actions = replica.fetched(0.1, list(enumerate(records)), is_end=True)
    assert actions == [FollowLeader(1, OTHER), WriteAccepted(0, b"12345678"), WriteAccepted(8, b"abc")]
    assert replica.mark[:4] == (3, int.from_bytes(records[3][8:12], "little"), 1, 11)
    with pytest.raises(NotLeading, match="other:7700"):
        replica.append(0.2, b"x")


def test_replica_leads_once_all_records_before_its_epoch_are_applied() -> None:
    replica = Replica(ME, 0.0)
    replica.fetched(0.1, [(0, epoch_frame(1, 0, OTHER).encode())], is_end=True)
    for at in range(1, 40):
        asked = frames(replica.fetched(0.1 + at / 10, [], is_end=True))
    records = [(1, data(0, b"late")), (2, asked[0].encode()), (3, data(4, b"too late"))]
    actions = replica.fetched(4.1, records, is_end=True)
    assert others(actions) == [WriteAccepted(0, b"late"), BeginLeading(2, 4)]
    assert not replica.serves(4.2)  # the other one may, until a while after its frame
    (heartbeat,) = frames(actions)
    assert heartbeat.base == 4


def test_appends_gather_while_a_frame_is_in_flight() -> None:
    replica = leading()
    (first,) = frames(replica.append(LED_S, b"12345678"))
    assert replica.append(LED_S, b"abcd") == replica.append(LED_S, b"efgh") == replica.append(LED_S, b"12345678") == []
    assert (replica.accepted, replica.end) == (0, 24)
    actions = replica.produced(LED_S, first, 3)
    assert others(actions) == [AcceptedTo(1, 8)]
    (second,) = frames(actions)
    assert (second.base, second.data) == (8, b"abcdefgh12345678")


def test_what_a_turn_gathers_goes_as_one_frame_with_the_next_tick() -> None:
    replica = leading()
    replica.gather(LED_S, b"12345678")
    replica.gather(LED_S, b"abcd")
    (sent,) = frames(replica.tick(LED_S))
    assert sent.data == b"12345678abcd"
    replica.gather(LED_S, b"more")  # while it is on its way
    assert replica.tick(LED_S) == []
    with pytest.raises(NotLeading):
        replica.gather(LED_S + 60, b"x")


def test_a_large_append_goes_in_parts() -> None:
    replica = leading()
    parts = frames(replica.append(LED_S, bytes(range(40))))
    assert [(each.base, each.part, each.is_last, len(each.data)) for each in parts] == [
        (0, 0, False, 16),
        (16, 1, False, 16),
        (32, 2, True, 8),
    ]
    assert replica.produced(LED_S, parts[0], 3) == replica.produced(LED_S, parts[1], 4) == []
    assert replica.produced(LED_S, parts[2], 5) == [AcceptedTo(1, 40)]


def test_after_a_lost_answer_the_partition_says_what_is_accepted() -> None:
    """The same frames are sent again, boundaries included; which copy counts is the partition's affair."""
    replica = leading()
    parts = frames(replica.append(LED_S, bytes(range(40))))
    replica.append(LED_S, b"more")
    replica.produced(LED_S, parts[0], 3)
    assert replica.unanswered(LED_S, parts[1]) == []
    reads = [replica.reads]
    assert replica.fetched(LED_S, [], is_end=False) == []
    assert frames(replica.fetched(LED_S, [], is_end=True)) == parts[1:]
    reads.append(replica.reads)
    assert replica.produced(LED_S, parts[1], 6) == []  # something stands before it
    assert [*reads, replica.reads] == [True, False, True]
    records = [(4, parts[2].encode()), (5, parts[1].encode()), (6, parts[1].encode()), (7, parts[2].encode())]
    actions = replica.fetched(LED_S, records, is_end=True)
    assert others(actions) == [AcceptedTo(1, 40)]
    assert [each.data for each in frames(actions)] == [b"more"]


def test_a_heartbeat_without_an_answer_is_given_up() -> None:
    replica = leading()
    (heartbeat,) = frames(replica.tick(LED_S + 0.5))
    assert replica.tick(LED_S + 0.6) == []
    replica.unanswered(LED_S + 1, heartbeat)
    (another,) = frames(replica.fetched(LED_S + 1, [], is_end=True))
    assert another.number == heartbeat.number + 1
    replica.unanswered(LED_S + 1, another)
    replica.fetched(LED_S + 1.1, [(3, heartbeat.encode()), (4, another.encode())], is_end=True)
    assert replica.serves(LED_S + 2.9)
    assert not replica.serves(LED_S + 3.0)


def test_a_leader_that_stood_still_serves_no_more() -> None:
    replica = leading()
    assert replica.serves(LED_S + 1.9)
    assert not replica.serves(LED_S + 2.0)
    with pytest.raises(NotLeading):
        replica.append(LED_S + 60, b"x")
    (heartbeat,) = frames(replica.tick(LED_S + 60))
    replica.produced(LED_S + 60.1, heartbeat, 3)
    assert replica.serves(LED_S + 61.9)  # nobody took over


def test_a_deposed_leader_discards_what_was_not_accepted() -> None:
    replica = leading()
    (first,) = frames(replica.append(LED_S, b"12345678"))
    replica.append(LED_S, b"never")
    assert replica.produced(LED_S, first, 4) == []
    records = [(3, epoch_frame(2, 0, OTHER).encode()), (4, first.encode()), (5, data(0, b"other", epoch=2))]
    actions = replica.fetched(LED_S, records, is_end=True)
    assert actions == [DiscardState(0), FollowLeader(2, OTHER), WriteAccepted(0, b"other")]
    assert (replica.role, replica.end, replica.leader) == (ReplicaRole.STANDBY, 5, OTHER)
    assert replica.produced(LED_S, first, 9) == replica.unanswered(LED_S, first) == []


def test_a_new_epoch_takes_what_is_not_accepted_into_other_frames() -> None:
    replica = leading()
    (first,) = frames(replica.append(LED_S, b"12345678"))
    replica.append(LED_S, b"abcd")
    (asked,) = frames(replica.take_new_epoch(LED_S))
    replica.unanswered(LED_S, first)
    assert replica.fetched(LED_S, [], is_end=True) == []  # nothing more in the old one
    actions = replica.fetched(LED_S, [(3, asked.encode()), (4, first.encode())], is_end=True)
    assert others(actions) == [BeginLeading(2, 0)]
    (again,) = frames(actions)
    assert (again.epoch, again.base, again.data) == (2, 0, b"12345678abcd")


def test_an_append_is_refused_while_too_much_waits() -> None:
    replica = leading()
    for _ in range(11):
        replica.append(LED_S, b"0123456789")
    with pytest.raises(ReplicationBehind, match="110 bytes wait"):
        replica.append(LED_S, b"x")
    assert replica.end == 110


def test_a_leader_stops_behind_all_that_it_took() -> None:
    replica = leading()
    (first,) = frames(replica.append(LED_S, b"12345678"))
    assert replica.stop(LED_S) == []
    with pytest.raises(NotLeading):
        replica.append(LED_S, b"x")
    actions = replica.produced(LED_S, first, 3)
    (stop,) = frames(actions)
    assert stop.kind is FrameKind.STOP
    assert not replica.serves(LED_S)
    assert replica.produced(LED_S, stop, 4) == [MayEnd()]
    assert Replica(ME, 0.0).stop(0.0) == [MayEnd()]


def test_invalid_frame_stops_the_replica() -> None:
    replica = Replica(ME, 0.0)
    with pytest.raises(PartitionUnusable, match="offset 0 .* it is no frame of a log; .* use the version"):  # noqa: RUF043
        replica.fetched(0.1, [(0, b"hello")], is_end=True)
    assert replica.position == 0


def test_bytes_of_its_own_epoch_that_it_did_not_send_stop_a_leader() -> None:
    replica = leading()
    replica._reads_to_end = True
    with pytest.raises(PartitionUnusable, match="this store leads and did not send"):
        replica.fetched(LED_S, [(3, data(0, b"12345678"))], is_end=True)


@pytest.mark.catalogue("L42")
@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_stops_hands_over_within_half_a_second(seed: int) -> None:
    time, chance = SimulatedTime(), random.Random(seed)
    around = Surroundings(time, SimulatedKafka(time, chance), chance, ClusterChecks(clocks_agree=True))
    stores = [SimulatedStore(name, around, Clock(time, 1.0, 0.0)) for name in "abc"]
    for store in stores:
        store.start()
    time.run_until(8)
    (leader,) = [store for store in stores if store.is_leading]
    leader.do(leader.replica.stop(time.now_s))
    time.run_until(8.5)
    serving = [store for store in stores if store.is_up and store.replica.serves(time.now_s)]
    assert len(serving) == 1
    assert serving[0] is not leader
