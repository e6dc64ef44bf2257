"""Bodies that no peer sends, over a real socket: each ends its connection with a line, and disturbs no other one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from store.wire import group_messages as of_group
from store.wire import messages as wire
from store.wire import operator_messages as of_operator
from store.wire import rights_messages as of_rights
from store.wire.base import WireMessage
from store.wire.frames import HEAD
from store.wire.messages import KINDS, Goodbye, Role
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import PeerClosed, WirePeer


def absurd(name: str = "penstock_connections", value: object = 1.0, **labels: str) -> list[object]:
    return ["1.0.0", 0, "", [[name, labels, value]], None]


ABSURD_REPORTS: tuple[object, ...] = (
    *(absurd(value=value) for value in (float("nan"), float("inf"), -1.0, 1e300, "1", None)),
    *(absurd("x" * 256), absurd(reason="x" * 256), absurd(one="1", two="2", three="3")),
    *(["1.0.0", 0, "", [["a", {}, 1.0]] * 2_001, None], ["x" * 256, 0, "", [], None], ["1", -1, "", [], None]),
    *(["1", 0, "x" * 1_025, [], None], ["1", 0, "", [], -1], None),
)
"""What a gateway must not say of itself."""
OF_ABSURD_GATEWAYS: list[tuple[Role, type[WireMessage], list[object]]] = [
    (Role.GATEWAY, of_operator.FiguresTold, [1, report]) for report in ABSURD_REPORTS
]
HOSTILE: tuple[tuple[Role, type[WireMessage], list[object]], ...] = (
    (Role.CLIENT, of_rights.Rights, [1]),
    (Role.CLIENT, of_rights.ReadableFilters, [1]),
    (Role.CLIENT, of_rights.Permitted, ["publish"]),
    (Role.CLIENT, of_rights.Permitted, ["publish", "line/1"]),
    (Role.CLIENT, of_rights.Permitted, ["publish", [1]]),
    (Role.CLIENT, of_rights.Permitted, ["publish", [""]]),
    (Role.CLIENT, of_rights.Permitted, ["publish", ["t"] * 501]),
    (Role.CLIENT, of_rights.Permitted, ["publish", ["t"], 1]),
    (Role.CLIENT, of_rights.Permitted, ["x" * 65, ["t"]]),
    (Role.CLIENT, of_rights.Permitted, [None, ["t"]]),
    (Role.CLIENT, of_group.GroupPause, ["g", "t"]),
    (Role.CLIENT, of_group.GroupPause, ["g", "t", 1]),
    (Role.CLIENT, of_group.GroupPause, ["g/h", "t", True]),
    (Role.OPERATOR, of_group.GroupPause, ["", "t", True]),
    (Role.OPERATOR, of_group.PausedGroups, ["g", -1]),
    (Role.OPERATOR, of_operator.DescribeClient, [1]),
    (Role.OPERATOR, of_operator.ListGateways, [1]),
    (Role.OPERATOR, of_operator.ShowGateway, ["gw", -1]),
    (Role.OPERATOR, of_operator.ShowGateway, ["x" * 70_000, 0]),
    *OF_ABSURD_GATEWAYS,
    (Role.OPERATOR, of_operator.DeadLetters, ["", 0, 1]),
    (Role.OPERATOR, of_operator.DeadLetters, ["g", 0, 1_001]),
    (Role.OPERATOR, of_operator.SettleDeadLetter, ["g", 0, 0, 1, "ops"]),
    (Role.OPERATOR, of_operator.SettleDeadLetter, ["g", -1, 0, True, "ops"]),
    (Role.OPERATOR, of_operator.SettleDeadLetter, ["g", 0, 0, True, "x" * 1_025]),
    (Role.OPERATOR, of_operator.ShowServer, []),
    (Role.OPERATOR, of_operator.ShowServer, [-1]),
    (Role.OPERATOR, of_operator.ShowServer, ["0"]),
    (Role.OPERATOR, of_operator.TopicReaders, ["", 0]),
    (Role.OPERATOR, of_operator.TopicReaders, [1, 0]),
    (Role.OPERATOR, of_operator.TopicReaders, ["t", 1 << 63]),
    (Role.OPERATOR, of_operator.TopicReaders, ["t" * 70_000, 0]),
    (Role.OPERATOR, of_operator.MessageReceivers, [-1, 0]),
    (Role.OPERATOR, of_operator.MessageReceivers, [0, 1 << 63]),
    (Role.OPERATOR, of_operator.MessageReceivers, ["0", 0]),
)
"""Who sends the body of which message."""
ROLES = ("gateway", "client", "operator")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path_factory.mktemp("hostile"), settings={f"wire.{role}_token": role for role in ROLES})
    yield store
    store.close()


@pytest.fixture(scope="module")
def healthy(store: StoreProcess) -> WirePeer:
    return store.connect("healthy", Role.CLIENT, Role.CLIENT.value)


def frame(message: type[WireMessage], body: list[object]) -> bytes:
    kind = next(kind for kind in KINDS if kind.message is message)
    data = msgspec.msgpack.encode(body)
    data += bytes(-len(data) & 7)
    return (
        HEAD.pack(HEAD.size + len(data), kind.number, bytes(3), int(kind.asked), len(msgspec.msgpack.encode(body)))
        + data
    )


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_frames_end_their_connection_alone(store: StoreProcess, healthy: WirePeer, number: int) -> None:
    role, message, body = HOSTILE[number]
    hostile = store.connect(f"hostile-{number}", role, role.value)
    hostile.socket.sendall(frame(message, body))
    with pytest.raises(PeerClosed):
        hostile.wait(lambda: False)
    (goodbye,) = [each for each in hostile.events if isinstance(each, Goodbye)]
    assert goodbye.reason.startswith(f"{message.__name__}: ")
    assert isinstance(healthy.call(wire.Seek("t", "now", 0)), wire.Sought)
