"""`penstock migrate`: clients may do the same here as at Mosquitto, or less and it is said; nothing is made up."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from gateway.mqtt.packets import Publish
from gateway.mqtt.reason_codes import ReasonCode
from penstock.flows.definition import read_flows
from penstock.migration.mosquitto import files, migrated
from penstock.migration.mosquitto_conf import MosquittoConf, acl_rules
from tests.interop.programs import penstock, run
from tests.support.mqtt_packet_client import Device, write_passwords
from tests.support.server_process import PenstockServer, ServeOptions, find_mosquitto, free_port, wait_for_port

CONF = """
# what a plant has
user root
persistence true
persistence_location /var/lib/mosquitto/
persistent_client_expiration 2w
max_inflight_messages 100
max_packet_size 100000
retain_available true
listener {port} 127.0.0.1
allow_anonymous false
password_file pw
acl_file acl

connection up
address center.example.com:8883
bridge_cafile ca.pem
remote_username plant
remote_password s3cr3t
topic line/# out 1 "" plant7/
topic cmd/# in 1 local/ ""
topic both/# both 1
notifications false
"""
ACL = """
topic read news/#

user admin
topic readwrite #

user alice
topic readwrite a/#
topic deny a/secret
topic write w/+
topic read r/+

pattern readwrite dev/%u/#
pattern write c/%c
"""
PASSWORDS = {"admin": "p1", "alice": "p2", "bob": "p3"}
TOPICS = ("a/x", "a/secret", "w/1", "r/1", "dev/alice/1", "dev/bob/1", "other", "news/1", "c/it")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "acl").write_text(ACL)
    passwords = tmp_path / "pw"
    passwords.touch(0o600)
    for user, password in PASSWORDS.items():
        run("mosquitto_passwd", "-b", str(passwords), user, password)
    (tmp_path / "mosquitto.conf").write_text(CONF.format(port=free_port()).partition("connection")[0])
    return tmp_path


def may_publish(port: int, user: str, topic: str) -> bool:
    device = Device(port, f"{user}-out")
    assert device.connect(user, PASSWORDS[user]).reason_code is ReasonCode.SUCCESS
    return device.published(topic, b"x") in (ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS)


def may_read(port: int, user: str, topic: str) -> bool:
    """Mosquitto judges each message, we the subscription."""
    reader, admin = Device(port, f"{user}-in"), Device(port, "admin")
    for device, name in ((reader, user), (admin, "admin")):
        assert device.connect(name, PASSWORDS[name]).reason_code is ReasonCode.SUCCESS
    reader.subscribe(topic, 1)
    assert reader.subscribe(f"dev/{user}/end", 1) is ReasonCode.GRANTED_QOS_1
    for each in (topic, f"dev/{user}/end"):
        assert admin.published(each, b"x") is ReasonCode.SUCCESS or each == topic
    return reader.next(Publish).topic_name == topic


def test_clients_may_do_the_same(folder: Path) -> None:
    run(*penstock("migrate", str(folder / "mosquitto.conf"), str(folder / "here")))
    write_passwords(folder / "here" / "passwords", PASSWORDS)
    config = folder / "here" / "penstock.toml"
    config.write_text(
        config.read_text()
        .replace('"passwords"', f'"{folder}/here/passwords"')
        .replace('"permissions.toml"', f'"{folder}/here/permissions.toml"')
    )
    theirs = int(tomllib.loads(config.read_text())["gateway"]["listen"][0].rpartition(":")[2])
    mosquitto = subprocess.Popen([str(find_mosquitto()), "-c", "mosquitto.conf"], cwd=folder)
    try:
        wait_for_port(theirs, mosquitto)
        found = {
            (user, topic, act): (may_publish if act == "publish" else may_read)(theirs, user, topic)
            for user in ("alice", "bob")
            for topic in TOPICS
            for act in ("publish", "read")
        }
    finally:
        mosquitto.kill()
        mosquitto.wait()
    options = ServeOptions({"config": str(config)}, {"gateway.listen": "mqtt://127.0.0.1:0"})
    server = PenstockServer(folder / "data", folder / "server.log", options)
    try:
        for (user, topic, act), allowed in found.items():
            assert (may_publish if act == "publish" else may_read)(server.port, user, topic) == allowed, (
                user,
                topic,
                act,
            )
        assert True in found.values()
        assert False in found.values()
        stranger = Device(server.port, "x")
        assert stranger.connect().reason_code is not ReasonCode.SUCCESS
    finally:
        server.kill()


def test_bridges_become_flows_and_passwords_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = files(migrated(MosquittoConf.parse(CONF.format(port=1883)), acl_rules(ACL), ["alice"]), "mosquitto.conf")
    assert not any("s3cr3t" in text for text in made.values())
    (tmp_path / "flows.toml").write_text(made["flows.toml"])
    (tmp_path / "ca.pem").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UP_PASSWORD", "s3cr3t")
    flows = {flow.name: flow for flow in read_flows(tmp_path / "flows.toml")}
    assert sorted(flows) == ["up-in-2", "up-in-3", "up-out-1", "up-out-3"]
    assert (flows["up-out-1"].said.from_, flows["up-out-1"].said.to) == (
        "line/#",
        "mqtts://center.example.com:8883/plant7",
    )
    assert flows["up-in-2"].said.from_ == "mqtts://center.example.com:8883/cmd/#"


def test_what_has_no_counterpart_is_said(tmp_path: Path) -> None:
    (tmp_path / "mosquitto.conf").write_text(
        "listener 1883\nlistener 9001\nprotocol websockets\nretain_available false\nmax_queued_bytes 7\n"
        "listener 1884\nmount_point up/\n"
    )
    printed = run(*penstock("migrate", str(tmp_path / "mosquitto.conf"))).decode()
    for word in ("retain_available (line 4)", "max_queued_bytes (line 5)", "mount_point up/"):
        assert word in printed
    settings = tomllib.loads(printed)
    assert settings["gateway"]["listen"] == ["mqtt://0.0.0.0:1883", "ws://0.0.0.0:9001", "mqtt://0.0.0.0:1884"]
    assert "auth" not in settings  # with a listener Mosquitto 2 lets nobody in who is not known


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listener x", "line 1: listener x: x is no port"),
        ("acl_file nowhere", "nowhere: No such file"),
        ("listener 99999", "line 1: listener 99999"),
        ("\xff", "not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str, said: str) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_bytes(text.encode("latin-1"))
    done = subprocess.run(penstock("migrate", str(conf)), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert said in done.stderr
    assert done.stdout == ""


def test_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mosquitto.conf").write_text("listener 1883\n")
    (tmp_path / "penstock.toml").write_text("mine")
    done = subprocess.run(
        penstock("migrate", str(tmp_path / "mosquitto.conf"), str(tmp_path)), capture_output=True, timeout=30
    )
    assert done.returncode != 0
    assert (tmp_path / "penstock.toml").read_text() == "mine"
