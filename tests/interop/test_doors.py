"""One guard for all doors of a server: MQTT, the store's port and the console. Failed logins and bans hold at each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.part import Part
from notify.links.address import StoreAddress
from penstock.sdk.errors import CannotConnect
from penstock.spark.connection import SparkConnection
from penstock.spark.errors import StoreRefusesUs, StoreUnreachable
from penstock.spark.store_options import store_of
from penstock.store_client import StoreClient
from penstock.sync import Client
from store.audit import host_of
from store.errors import WireError
from store.wire.handshake import LOGINS_VERSION, VERSIONS
from store.wire.log_messages import LogRead, ReadLog
from store.wire.messages import Role
from store.wire.operator_messages import MOST_LOGINS, AddBan, LiftBan, LoginEnd, LoginsEnded, OperatorDone
from tests.interop.programs import TIMEOUT_S
from tests.interop.test_console_process import passwords
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import free_port
from tests.support.store_process import StoreProcess
from tests.support.store_protocol_client import WirePeer
from tests.support.stores import wait_until

TOKENS = {"operator": "what-operators-show", "client": "what-clients-show", "gateway": "what-gateways-show"}
RULES = """
[[rule]]
users = ["root", "bob"]
allow = ["publish", "retain", "subscribe", "replay", "read_log", "admin"]
topics = ["#", "$dead/#"]
"""


class Doors:
    """A store with users bob and root, at its port."""

    def __init__(self, folder: Path, with_users: bool = True, **settings: Any) -> None:
        files: dict[str, object] = {}
        if with_users:
            (folder / "rules.toml").write_text(RULES)
            file = passwords(folder, root="s3c", bob="s3c")
            files = {"auth.password_file": file, "auth.permissions_file": folder / "rules.toml"}
        by_path = {path.replace("__", "."): value for path, value in settings.items()}
        wire = {f"wire.{role}_token": token for role, token in TOKENS.items()}
        self.settings = {**files, **wire, **by_path}
        self.store = StoreProcess(folder, settings=self.settings)
        self._clients: list[Client] = []

    def client(self, user: str = "bob", password: str = "s3c", **options: Any) -> Client:
        url = self.store.url.replace("tcp://", "penstock://")
        client = Client(url, token=TOKENS["client"], user=user, password=password, **{"timeout_s": 5.0} | options)
        client.connect()
        self._clients.append(client)
        return client

    def refusal(self, user: str = "bob", password: str = "s3c") -> str:
        """Why the store does not let a client in."""
        with pytest.raises(CannotConnect) as caught:
            self.client(user, password)
        return str(caught.value)

    def ban(self, kind: Any, value: str, for_s: int = 0) -> None:
        self.operate(AddBan(kind, value, for_s, "test", "a test"))

    def lift(self, kind: Any, value: str) -> None:
        self.operate(LiftBan(kind, value, "a test"))

    def operate(self, message: Any) -> None:
        with StoreClient(StoreAddress.parse(self.store.url), TOKENS["operator"], None, Role.OPERATOR) as server:
            assert server.call(message, OperatorDone).found

    def spark(self) -> SparkConnection:
        options = {"token": TOKENS["client"], "user": "bob", "password": "s3c", "storetimeout": "0"}
        return store_of(self.store.url.replace("tcp://", "penstock://"), options).connect()

    def audit(self, event: str, **fields: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.store.data / "audit.jsonl").read_text().splitlines()]
        wanted = {"event": event, **fields}
        for line in lines:  # without the port
            line["address"] = host_of(line.get("address", ""))
        return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.store.close()


def log_in(port: int, password: str) -> ReasonCode:
    """How a gateway answers bob."""
    return Device(port, "b").connect("bob", password).reason_code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Doors] = []

    def begin(**settings: Any) -> Doors:
        started.append(Doors(tmp_path, **settings))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def test_after_many_wrong_logins_at_the_stores_port_the_right_one_is_refused_too(start: Any) -> None:
    doors = start(auth__failure_window_s=6_000)
    for number in range(160):
        assert "refused the connection" in doors.refusal(password=f"wrong-{number}")
    assert "(limited): too many failed logins; try again later" in doors.refusal()
    doors.client("root")  # another user at the address
    wait_until(lambda: bool(doors.audit("peer_refused", user="bob", address="127.0.0.1")), TIMEOUT_S)
    wait_until(lambda: bool(doors.audit("peer_connected", user="root")), TIMEOUT_S)


def test_a_limit_is_over_after_its_time(start: Any) -> None:
    doors = start(auth__failure_window_s=2, auth__max_failures=1)
    doors.refusal(password="wrong")

    def is_let_in() -> bool:
        try:
            doors.client()
        except CannotConnect:
            return False
        return True

    wait_until(is_let_in, TIMEOUT_S)


def test_an_address_that_goes_on_is_banned_by_the_store(start: Any) -> None:
    doors = start(auth__limit_loopback=True, auth__ban_failures=5)
    for number in range(5):
        doors.refusal(password=f"wrong-{number}")
    assert "(banned): address 127.0.0.1 is banned: 5 failed logins" in doors.refusal("root")
    wait_until(lambda: bool(doors.audit("banned", address="127.0.0.1")), TIMEOUT_S)
    doors.lift("address", "127.0.0.1")
    doors.client("root")


def test_gateways_in_other_processes_count_in_the_same_table(start: Any, tmp_path: Path) -> None:
    limits = {"auth__failure_window_s": 6_000, "auth__limit_loopback": True, "auth__ban_failures": 0}
    doors = start(**limits)
    gateways: list[Part] = []
    ports: list[int] = []
    try:
        settings = {**doors.settings, "gateway.store_token": TOKENS["gateway"]}
        for number in range(2):
            ports.append(free_port())
            command = ["gateway", "--store", doors.store.url, "--listen", f"mqtt://127.0.0.1:{ports[-1]}"]
            gateways.append(Part(tmp_path / f"{number}.log", command, settings, admin=False))
        one, other = ports
        for number in range(9):
            assert log_in(one, f"wrong-{number}") is ReasonCode.BAD_USER_NAME_OR_PASSWORD
        heard = [log_in(other, f"other-{number}") for number in range(10)]
        assert ReasonCode.CONNECTION_RATE_EXCEEDED in heard  # it has heard of most of the nine
        wait_until(lambda: "(limited)" in doors.refusal(password="wrong"), TIMEOUT_S)
        assert log_in(one, "s3c") is ReasonCode.CONNECTION_RATE_EXCEEDED
        doors.client("root")
    finally:
        for gateway in gateways:
            gateway.kill()


def test_a_gateway_may_tell_of_a_bounded_number_of_logins(start: Any) -> None:
    doors = start(auth__failure_window_s=6_000)
    before = VERSIONS[: VERSIONS.index(LOGINS_VERSION)]
    teller, listener, older = (
        WirePeer(doors.store.url, name, token=TOKENS["gateway"], versions=versions)
        for name, versions in (
            ("teller", VERSIONS),
            ("listener", VERSIONS),
            ("older", before),
        )
    )
    with teller, listener, older:
        end = LoginEnd("127.0.0.1", "bob", "wrong")
        teller.tell(LoginsEnded([end] * 10))
        wait_until(lambda: "(limited)" in doors.refusal(), TIMEOUT_S)
        for peer, hears in ((teller, False), (listener, True), (older, False)):
            peer.ping()
            assert (LoginsEnded([end] * 10) in peer.events) is hears
        teller.tell(LoginsEnded([end] * (MOST_LOGINS + 1)))
        with pytest.raises(WireError):
            teller.ping()
        listener.ping()


@pytest.mark.parametrize("ban", [("user", "bob"), ("address", "127.0.0.1"), ("address", "127.0.0.0/8")])
@pytest.mark.parametrize("with_users", [True, False])
def test_a_ban_holds_at_the_stores_port_and_ends_what_is_open(
    start: Any, ban: tuple[str, str], with_users: bool
) -> None:
    doors = start(with_users=with_users)
    client, spark = doors.client(timeout_s=TIMEOUT_S), doors.spark()
    client.publish("line/1", b"x")
    spark.call(ReadLog(0, 1 << 20), LogRead)
    root = doors.client("root")
    doors.ban(*ban)
    wait_until(lambda: len(doors.audit("cut_off")) >= 2, TIMEOUT_S)
    with pytest.raises(StoreUnreachable, match=r"connection|banned"):
        spark.call(ReadLog(0, 1 << 20), LogRead)
    with pytest.raises(StoreRefusesUs, match="banned"):
        spark.call(ReadLog(0, 1 << 20), LogRead)
    assert f"(banned): {ban[0]} {ban[1]} is banned: test" in doors.refusal()
    if ban[0] == "user":
        root.publish("line/1", b"x")
        assert {line.get("user", "") for line in doors.audit("cut_off")} <= {"bob", ""}
    doors.lift(*ban)
    client.publish("line/1", b"y")  # its link connects again by itself
    doors.client()


def test_a_ban_that_is_set_while_nobody_is_there_holds_after_a_restart(start: Any) -> None:
    doors = start()
    doors.ban("user", "bob")
    doors.store.kill()
    doors.store.start()
    assert "(banned)" in doors.refusal()
    assert "(banned)" in doors.refusal(password="wrong")
    doors.client("root")
