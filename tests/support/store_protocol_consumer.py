"""A consumer of a group in blocking sockets; as a program it says on standard output what it got, and what is acked.

    python -m tests.support.store_protocol_consumer tcp://127.0.0.1:7700 c-1 billing 'line/#' 0.01

The number: how many seconds it works on what it got.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

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
    Settled,
)
from store.wire.messages import Role
from tests.support.store_protocol_client import WirePeer


class Handed(NamedTuple):
    """A message, and what it is settled with."""

    payload: bytes
    topic: bytes
    deliveries: int
    receipt: Receipt


class GroupConsumer:
    """One consumer on a connection of its own."""

    def __init__(
        self,
        url: str,
        name: str,
        group: str,
        topic_filter: str,
        settings: GroupSettings | None = None,
        start: str = "earliest",
    ) -> None:
        self.peer = WirePeer(url, name, Role.CLIENT)
        try:
            opened = self.peer.call(GroupOpen(group, topic_filter, "", settings, start))
            assert isinstance(opened, GroupOpened), opened
        except BaseException:
            self.peer.close()
            raise
        self.ref = opened.ref

    def pop(self, most: int, wait_ms: int = 0, invisible_ms: int = 0) -> list[Handed]:
        frame = self.peer.answer_frame(self.peer.ask(Pop(self.ref, most, 1 << 20, invisible_ms, wait_ms)))
        assert isinstance(frame.message, Popped), frame.message
        places = [
            (deliveries, Receipt(serial, first + i, 1))
            for serial, deliveries, first, number in frame.message.handed
            for i in range(number)
        ]
        records = read_records(frame.records)
        return [Handed(record.payload, record.topic, *place) for record, place in zip(records, places, strict=True)]

    def ack(self, handed: list[Handed]) -> list[Receipt]:
        """What of it is stale."""
        settled = self.peer.call(Ack(self.ref, [each.receipt for each in handed]))
        assert isinstance(settled, Settled), settled
        return settled.stale

    def info(self) -> GroupInfo:
        """What the store says of the one group that it has."""
        listed = self.peer.call(GroupList("", 0))
        assert isinstance(listed, GroupsListed), listed
        (found,) = listed.groups
        return found

    def close(self) -> None:
        self.peer.close()


def main(url: str, name: str, group: str, topic_filter: str, work_s: str) -> None:
    consumer = GroupConsumer(url, name, group, topic_filter)
    while True:
        handed = consumer.pop(3, wait_ms=5_000)
        for each in handed:
            print("got", each.payload.decode(), flush=True)
        time.sleep(float(work_s))
        if handed:
            stale = consumer.ack(handed)
            for each in handed:
                if each.receipt not in stale:
                    print("acked", each.payload.decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
