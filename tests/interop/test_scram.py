"""Enhanced authentication with SCRAM-SHA-256; the client's side is another library's code."""

import shutil
from pathlib import Path

import pytest
from scramp import ScramClient

from gateway.mqtt.packets import Auth, ConnAck, Disconnect, PingReq, PingResp, Publish
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from tests.conftest import ONE_PROCESS_BY_DAY, ServerFactory, SharedServers
from tests.interop.programs import penstock, run
from tests.support.mqtt_packet_client import Device, reload, write_passwords
from tests.support.server_process import PenstockServer

pytestmark = ONE_PROCESS_BY_DAY

METHOD = "SCRAM-SHA-256"
GO_ON, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("users") / "passwords"
    run(*penstock("passwd", str(file), "alice", "--stdin", "--scram"), stdin="pässword\n".encode())
    run(*penstock("passwd", str(file), "bob", "--stdin", "--scram"), stdin=b"bobs\n")
    run(*penstock("passwd", str(file), "carol", "--stdin"), stdin=b"carols\n")
    return file


@pytest.fixture
def passwords(tmp_path: Path, fixed: Path) -> Path:
    """That a test may change."""
    return Path(shutil.copy(fixed, tmp_path / "passwords"))


@pytest.fixture
def server(shared_server: SharedServers, fixed: Path) -> PenstockServer:
    return shared_server(settings={"auth.password_file": fixed})


def scram(username: str = "alice", password: str = "pässword") -> ScramClient:
    return ScramClient([METHOD], username, password)


def auth(reason_code: ReasonCode, data: str | None, method: str = METHOD) -> Auth:
    sent = None if data is None else data.encode()
    return Auth(reason_code, Properties(authentication_method=method, authentication_data=sent))


def data_of(packet: Auth | ConnAck) -> str:
    assert packet.properties.authentication_method == METHOD
    return (packet.properties.authentication_data or b"").decode()


def begin(device: Device, client: ScramClient) -> None:
    """The first half of the exchange."""
    first = client.get_client_first().encode()
    device.send_connect(authentication_method=METHOD, authentication_data=first)
    challenge = device.next(Auth)
    assert challenge.reason_code is GO_ON
    assert (challenge.properties.reason_string, challenge.properties.user_properties) == (None, ())
    client.set_server_first(data_of(challenge))


def enter(server: PenstockServer, client: ScramClient, name: str = "d") -> Device:
    device = Device(server.port, name)
    begin(device, client)
    device.send(auth(GO_ON, client.get_client_final()))
    answer = device.next(ConnAck)
    assert answer.reason_code is ReasonCode.SUCCESS
    client.set_server_final(data_of(answer))  # raises if the server does not know the password
    return device


@pytest.mark.mqtt("MQTT-4.12.0-2", "MQTT-4.12.0-5", "MQTT-3.15.2-1", "MQTT-3.15.2-2", "MQTT-3.15.2-3")
def test_scram_login_with_the_right_password(server: PenstockServer) -> None:
    device = enter(server, scram())
    assert device.published("a") is ReasonCode.SUCCESS


def test_a_client_may_leave_its_first_message_for_later(server: PenstockServer) -> None:
    device, client = Device(server.port, "d"), scram()
    device.send_connect(authentication_method=METHOD)
    assert device.next(Auth).properties.authentication_data is None
    device.send(auth(GO_ON, client.get_client_first()))
    client.set_server_first(data_of(device.next(Auth)))
    device.send(auth(GO_ON, client.get_client_final()))
    assert device.next(ConnAck).reason_code is ReasonCode.SUCCESS


@pytest.mark.mqtt("MQTT-4.12.0-4")
@pytest.mark.parametrize("who", [("alice", "wrong"), ("nobody", "x"), ("carol", "carols")])
def test_scram_refuses_others_with_the_same_answer(server: PenstockServer, who: tuple[str, str]) -> None:
    device, client = Device(server.port, "d"), scram(*who)
    begin(device, client)
    device.send(auth(GO_ON, client.get_client_final()))
    assert device.next(ConnAck).reason_code is ReasonCode.NOT_AUTHORIZED
    assert device.receive() is None


def test_guesses_at_the_same_time_do_not_pass_a_limit_together(penstock_server: ServerFactory, fixed: Path) -> None:
    limit = {"auth.max_failures": 3, "auth.failure_window_s": 6_000}
    server = penstock_server(settings={"auth.password_file": fixed, **limit})
    guessing = [(Device(server.port, f"d{number}"), scram(password=f"wrong-{number}")) for number in range(10)]
    for device, client in guessing:
        begin(device, client)
    for device, client in guessing:
        device.send(auth(GO_ON, client.get_client_final()))
    answers = [device.next(ConnAck).reason_code for device, _ in guessing]
    assert answers.count(ReasonCode.NOT_AUTHORIZED) == 3
    assert answers.count(ReasonCode.CONNECTION_RATE_EXCEEDED) == 7


def test_other_methods_are_not_offered(server: PenstockServer, shared_server: SharedServers) -> None:
    for port in (server.port, shared_server().port):
        answer = Device(port, "d").connect(authentication_method="KERBEROS", authentication_data=b"x")
        assert answer.reason_code is ReasonCode.BAD_AUTHENTICATION_METHOD


@pytest.mark.parametrize("data", [b"", b"x", b"n,,n=alice", b"\xff", b"y,,n=a=2,r=x", b"n,," + b"r" * 9_000])
def test_nonsense_is_refused(server: PenstockServer, data: bytes) -> None:
    answer = Device(server.port, "d").connect(authentication_method=METHOD, authentication_data=data)
    assert answer.reason_code is ReasonCode.NOT_AUTHORIZED


def test_only_auth_may_come_in_the_midst_of_it(server: PenstockServer) -> None:
    for packet in (PingReq(), Publish("a", b"x"), auth(AGAIN, "x"), auth(GO_ON, "x", "OTHER")):
        device = Device(server.port, "d")
        begin(device, scram())
        device.send(packet)
        assert device.closed_with() is None
    device = Device(server.port, "d")
    begin(device, scram())
    device.send_connect("alice", "pässword")
    assert device.receive() is None


def test_auth_without_a_method_is_an_error(server: PenstockServer) -> None:
    device = Device(server.port, "d")
    device.send(auth(GO_ON, "x"))
    assert device.receive() is None
    for reason_code in (GO_ON, AGAIN):
        device = Device(server.port, "d")
        assert device.connect("alice", "pässword").reason_code is ReasonCode.SUCCESS
        device.send(auth(reason_code, "x"))
        assert device.closed_with() is ReasonCode.PROTOCOL_ERROR


def authenticate_again(device: Device, client: ScramClient) -> None:
    device.send(auth(AGAIN, client.get_client_first()))
    client.set_server_first(data_of(device.next(Auth)))
    device.send(PingReq())  # other things go on
    device.next(PingResp)
    device.send(auth(GO_ON, client.get_client_final()))


@pytest.mark.mqtt("MQTT-3.15.2-1")
def test_authenticating_again(server: PenstockServer) -> None:
    device = enter(server, scram())
    for _ in range(2):
        client = scram()
        authenticate_again(device, client)
        done = device.next(Auth)
        assert done.reason_code is ReasonCode.SUCCESS
        client.set_server_final(data_of(done))
    assert device.published("a") is ReasonCode.SUCCESS


@pytest.mark.mqtt("MQTT-4.12.1-2")
@pytest.mark.parametrize("who", [("alice", "wrong"), ("bob", "bobs")])
def test_failed_re_authentication_ends_the_connection(server: PenstockServer, who: tuple[str, str]) -> None:
    device = enter(server, scram())
    authenticate_again(device, scram(*who))
    packet = device.next(Disconnect)
    assert packet.reason_code is ReasonCode.NOT_AUTHORIZED


def test_authenticating_again_with_another_method_is_an_error(server: PenstockServer) -> None:
    device = enter(server, scram())
    device.send(auth(AGAIN, "x", "OTHER"))
    assert device.closed_with() is ReasonCode.PROTOCOL_ERROR


def test_a_changed_password_ends_it(penstock_server: ServerFactory, passwords: Path) -> None:
    server = penstock_server(settings={"auth.password_file": passwords})
    alice, bob = enter(server, scram()), enter(server, scram("bob", "bobs"), "e")
    run(*penstock("passwd", str(passwords), "alice", "--stdin", "--scram"), stdin=b"new\n")
    reload(server)
    assert alice.closed_with() is ReasonCode.NOT_AUTHORIZED
    assert bob.published("a") is ReasonCode.SUCCESS
    assert enter(server, scram("alice", "new")).published("a") is ReasonCode.SUCCESS


def test_a_password_file_without_such_verifiers_offers_none(penstock_server: ServerFactory, tmp_path: Path) -> None:
    server = penstock_server(settings={"auth.password_file": write_passwords(tmp_path / "p", {"a": "x"})})
    answer = Device(server.port, "d").connect(authentication_method=METHOD, authentication_data=b"n,,n=a,r=x")
    assert answer.reason_code is ReasonCode.BAD_AUTHENTICATION_METHOD
