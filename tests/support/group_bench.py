"""A store with consumer groups, and consumers that speak the wire to it, without sockets."""

from store.records.records import read_records
from store.state.group_settings import GroupSettings
from store.wire.group_messages import (
    Ack,
    GroupInfo,
    GroupList,
    GroupOpen,
    GroupOpened,
    GroupsListed,
    Pop,
    Popped,
    Receipt,
    Reject,
    Settled,
)
from store.wire.messages import Role
from tests.support.store_protocol_bench import Talk, WireBench

SETTINGS = GroupSettings(invisible_ms=10_000, max_deliveries=3, retry_ms=1_000, retry_most_ms=4_000)


class GroupBench(WireBench):
    """With a wall clock that goes with the other one."""

    def start(self) -> None:
        super().start()
        self.peers.groups.consumers.now_ms = lambda: int(self.now_s * 1000)


class BenchConsumer:
    """A consumer, the only one of its peer."""

    def __init__(
        self, bench: GroupBench, name: str, settings: GroupSettings | None = SETTINGS, of: str = "t/#"
    ) -> None:
        self.bench = bench
        self.talk: Talk = bench.connect(name, Role.CLIENT)
        opened = self.talk.call(GroupOpen("g", of, name, settings, "earliest"))
        assert isinstance(opened, GroupOpened), opened
        self.ref = opened.ref
        self.handed: dict[bytes, tuple[int, int, int]] = {}  # payload → serial, deliveries, queue_offset

    def pop(self, most: int = 100, max_bytes: int = 1 << 20) -> list[bytes]:
        return self.took(self.talk.ask(Pop(self.ref, most, max_bytes, 0, 0))) or []

    def wait(self, wait_ms: int = 60_000) -> int:
        return self.talk.ask(Pop(self.ref, 100, 1 << 20, 0, wait_ms))

    def took(self, request_id: int) -> list[bytes] | None:
        """The payloads of an answer, if there is one."""
        frame = self.talk.answer_frame(request_id)
        if frame is None:
            return None
        assert isinstance(frame.message, Popped), frame.message
        found = [record.payload for record in read_records(frame.records)]
        places = [
            (serial, deliveries, first + i)
            for serial, deliveries, first, number in frame.message.handed
            for i in range(number)
        ]
        self.handed.update(zip(found, places, strict=True))
        return found

    def receipts(self, *found: bytes) -> list[Receipt]:
        return [Receipt(self.handed[each][0], self.handed[each][2], 1) for each in found]

    def ack(self, *found: bytes) -> list[Receipt]:
        """What of it is stale."""
        return self.settled(self.talk.ask(Ack(self.ref, self.receipts(*found))))

    def reject(self, *found: bytes, delay_ms: int | None = None, dead: str = "") -> list[Receipt]:
        return self.settled(self.talk.ask(Reject(self.ref, self.receipts(*found), delay_ms, dead)))

    def settled(self, request_id: int) -> list[Receipt]:
        answer = None
        while answer is None:
            self.bench.wait(0.05)
            answer = self.talk.answer(request_id)
        assert isinstance(answer, Settled), answer
        return answer.stale

    def stay(self, seconds: int, *others: "BenchConsumer") -> None:
        """Let time pass, and be heard of meanwhile."""
        for _ in range(seconds):
            self.bench.wait(1)
            for each in (self, *others):
                each.talk.ping()

    def info(self) -> GroupInfo:
        listed = self.talk.call(GroupList("", 0))
        assert isinstance(listed, GroupsListed)
        (found,) = listed.groups
        return found
