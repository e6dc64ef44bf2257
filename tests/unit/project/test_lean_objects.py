"""Objects that every turn calls have so few attributes that CPython finds their methods at once."""

from __future__ import annotations

from pathlib import Path

from notify.remote.store import RemoteStore
from tests.support.store_protocol_bench import Nowhere, WireBench

MOST_ATTRIBUTES = 29  # of an object without __slots__; with one more CPython 3.11 keeps them in a dict of its own


def test_objects_on_the_way_of_a_frame_have_few_attributes(tmp_path: Path) -> None:
    bench = WireBench(tmp_path)
    talk = bench.connect("gw-1")
    peer = talk.conversation.peer
    assert peer is not None
    store = bench.store
    objects = (talk.conversation, peer, peer.member, bench.hub, bench.peers, store, store.log, store.queues)
    many = {type(each).__name__: len(vars(each)) for each in objects if len(vars(each)) > MOST_ATTRIBUTES}
    assert not many
    remote = RemoteStore(5, 1, Nowhere(), lambda: 0.0)
    parts = (remote, remote.appends, remote.queues, remote.sessions, remote.groups)
    assert not [each for each in parts if len(vars(each)) > MOST_ATTRIBUTES]
