"""A consumer group against a plain model: nothing is lost, nothing is two consumers' at a time, order is kept.

The log is a GroupState that the changes are applied to, as bytes; a kill goes back to it.
"""

from dataclasses import dataclass
from itertools import chain

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.state.changes import GroupAdvanced, decode_change, encode_change
from store.state.group_settings import GroupSettings
from store.state.group_states import GroupState, _advance
from store.state.groups import ConsumerKey, Group, PartitionOffset
from store.state.offset_ranges import as_ranges, in_ranges

CONSUMERS = (("p", "one"), ("p", "two"), ("q", "one"), ("q", "two"))
LAST = ("last", "")
consumers = st.sampled_from(CONSUMERS)
INVISIBLE_MS = 1_000


@dataclass
class Out:
    """A message that a consumer has, as the model knows it."""

    consumer: ConsumerKey
    serial: int
    due_ms: int


class GroupMachine(RuleBasedStateMachine):
    @initialize(partitions=st.sampled_from((0, 1, 3)), most=st.sampled_from((2, 7, 100)), deliveries=st.integers(0, 3))
    def begin(self, partitions: int, most: int, deliveries: int) -> None:
        self.settings = GroupSettings(partitions, INVISIBLE_MS, deliveries, 100, 400, most)
        self.state = GroupState("g", "#", self.settings, [0] * self.settings.cursors)
        self.epoch = 2_046  # of the leader; in a serial they begin again after 2,048
        self.group = Group(self.settings, self.state.positions, self.state.entries, self.epoch)
        self.now_ms = 1_000_000
        self.queue: list[int] = []  # the partition of each message
        self.out: dict[int, Out] = {}
        self.not_before: dict[int, int] = {}  # rejected ones
        self.settled: set[int] = set()
        self.logged_settled: set[int] = set()
        self.unlogged: dict[int, str] = {}  # which peer had a message at the last kill, where the log does not say so
        self.found_bound = 0

    # --- what happens

    @rule(partitions=st.lists(st.integers(0, 2), min_size=1, max_size=8))
    def publish(self, partitions: list[int]) -> None:
        self.queue += [partition % self.settings.cursors for partition in partitions]

    @rule(consumer=consumers)
    def join(self, consumer: ConsumerKey) -> None:
        self.group.join(consumer)

    @rule(consumer=consumers)
    def leave(self, consumer: ConsumerKey) -> None:
        self.group.leave(consumer, self.now_ms)
        self.out = {offset: out for offset, out in self.out.items() if out.consumer != consumer}

    @rule(ms=st.sampled_from((1, 99, 500, 1_000)))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: self.group.consumers)
    @rule(most=st.integers(1, 5), data=st.data())
    def pop(self, most: int, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.group.consumers)))
        for place in self.deal(consumer, most):
            self.check_may_go(place, consumer)

    def deal(self, consumer: ConsumerKey, most: int) -> list[PartitionOffset]:
        """As GroupQueue.pop() does."""
        group = self.group
        group.run(self.now_ms)
        start = group.look_from(consumer)
        if start is not None and start < len(self.queue):
            found = self.queue[start : start + (3 if self.settings.partitions else min(most, group.room))]
            group.found(start, start, found)
        places = group.available(consumer, most)
        assert len(places) <= most
        due_ms = self.now_ms + INVISIBLE_MS
        self.last = group.hand_out(consumer, places, self.now_ms, due_ms)
        handed = [(lease.partition, offset) for lease in self.last for offset in lease.offsets]
        assert handed == places
        return places

    def check_may_go(self, place: PartitionOffset, consumer: ConsumerKey) -> None:
        partition, offset = place
        assert self.queue[offset] == partition
        assert offset not in self.settled
        held = self.out.get(offset)
        assert held is None or held.due_ms <= self.now_ms, "two have it"
        assert self.not_before.pop(offset, 0) <= self.now_ms
        if self.settings.partitions:
            earlier = {at for at in range(offset) if self.queue[at] == partition}
            assert earlier <= self.settled, "out of order"
        (lease,) = [lease for lease in self.last if offset in lease.offsets]
        self.out[offset] = Out(consumer, lease.serial, lease.due_ms)

    # --- what consumers say

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        out = self.out.pop(offset)
        if self.group.ack(out.serial, offset, 1):
            assert out.due_ms <= self.now_ms, "stale before its time"
        else:
            self.settled.add(offset)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), ms=st.integers(1, 3_000))
    def change_invisible(self, data: st.DataObject, ms: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        out = self.out[offset]
        if not self.group.change_invisible(out.serial, offset, 1, self.now_ms + ms):
            out.due_ms = self.now_ms + ms

    @precondition(lambda self: self.out)
    @rule(data=st.data(), dead=st.booleans())
    def reject(self, data: st.DataObject, dead: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        out = self.out.pop(offset)
        if not self.group.reject(out.serial, offset, 1, self.now_ms, dead="no" if dead else ""):
            self.not_before[offset] = self.now_ms + 100

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def say_nonsense(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.queue) + 1))
        held = self.out.get(offset)
        assert self.group.ack(0, offset, 1) == [offset]
        assert held is None or self.group.ack(held.serial - 1, offset, 1) == [offset]

    # --- the log

    @rule()
    def write(self) -> None:
        self.group.run(self.now_ms)
        held, done = self.group.held_and_done(self.state.entries)
        positions = tuple(enumerate(self.group.positions))
        self.say(GroupAdvanced("g", "#", positions, tuple(held), tuple(done)))
        dead = sorted(self.group.dead)
        self.say(GroupAdvanced("g", "#", done=tuple(as_ranges(dead)), dead=len(dead)))
        self.group.buried(dead)
        self.group.written()
        for offset in dead:
            self.out.pop(offset, None)
            self.not_before.pop(offset, None)
        self.settled.update(dead)
        self.logged_settled = set(self.settled)
        assert not self.group.has_changes

    def say(self, advanced: GroupAdvanced) -> None:
        found = decode_change(*encode_change(advanced))
        assert isinstance(found, GroupAdvanced)
        _advance(self.state, found)

    @rule()
    def kill(self) -> None:
        """What was not written is forgotten, and who has what; what somebody has by the log is his until it is due."""
        self.settled = set(self.logged_settled)
        held = self.state.entries
        self.unlogged = {offset: out.consumer[0] for offset, out in self.out.items() if offset not in held}
        self.out = {
            offset: Out(("", ""), serial, due_ms)
            for offset, (due_ms, _, serial, _) in self.state.entries.items()
            if serial and offset not in self.settled
        }
        self.not_before = {
            offset: due_ms for offset, (due_ms, _, serial, _) in self.state.entries.items() if not serial
        }
        self.epoch += 1
        self.group = Group(self.settings, self.state.positions, self.state.entries, self.epoch)

    @precondition(lambda self: self.unlogged)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        """A peer's append says that a message is done with which it was handed before the last kill."""
        offset = data.draw(st.sampled_from(sorted(self.unlogged)))
        peer = self.unlogged.pop(offset)
        place = self.queue[offset], offset
        held = self.out.get(offset)
        may = offset not in self.settled and (held is None or held.consumer[0] in ("", peer))
        assert self.group.may_take(place, peer) is may
        if not may:
            return
        self.group.find(place, self.now_ms)
        self.found_bound += len(self.queue)
        done = {offset}
        if self.settings.partitions:  # it was handed out once these were done with
            done |= {at for at in range(offset) if self.queue[at] == place[0]}
        for each in done:
            self.out.pop(each, None)
            self.not_before.pop(each, None)
        self.write()
        self.say(GroupAdvanced("g", "#", done=(offset, 1)))
        self.group.took([offset])
        self.settled |= done
        self.logged_settled |= done

    # --- what holds

    @invariant()
    def partitions_are_shared_out_evenly(self) -> None:
        if not self.settings.partitions or not self.group.consumers:
            return
        shares = [each.partitions for each in self.group.consumers.values()]
        assert sorted(chain(*shares)) == list(range(self.settings.partitions))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        most = self.settings.most_in_flight + self.settings.cursors + self.found_bound
        assert self.group.in_flight + self.group.waiting <= most

    def teardown(self) -> None:
        """Every message is acked or a dead letter in the end."""
        if not hasattr(self, "group"):
            return
        self.group.join(LAST)
        for consumer in CONSUMERS:
            self.leave(consumer)
        for _ in range(20 + 4 * len(self.queue)):
            self.now_ms += 5_000
            for place in self.deal(LAST, 5):
                self.check_may_go(place, LAST)
            for offset, out in list(self.out.items()):
                if out.consumer == LAST:
                    self.group.ack(out.serial, offset, 1)
                    self.settled.add(offset)
                    del self.out[offset]
            self.write()
        assert self.settled == set(range(len(self.queue)))
        assert self.group.lag(len(self.queue)) == 0
        assert self.group.acked_offset == len(self.queue)
        assert not self.state.entries
        assert not self.group._deadlines


GroupMachine.TestCase.settings = settings(
    max_examples=2 * settings().max_examples, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestGroups = GroupMachine.TestCase


def test_ranges() -> None:
    assert list(in_ranges((3, 2, 9, 1))) == [3, 4, 9]
