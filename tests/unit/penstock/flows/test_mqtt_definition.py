"""Flows to MQTT brokers as a file has them: what is wrong is one line, before anything starts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.flows.definition import Flow, read_flows
from penstock.flows.mqtt_place import mqtt_place
from penstock.flows.process import runner_of
from penstock.sdk.client import Client
from tests.unit.penstock.flows.test_definition import flows_of

FROM = 'from = "plant/#"\n'


def test_a_broker_is_a_host_a_port_and_a_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTT_PASSWORD", "quite secret")
    options = 'mqtt = { user = "plant", password = { env = "MQTT_PASSWORD" } }'
    (flow,) = flows_of(tmp_path, f'{FROM}to = "mqtts://h:8884/plant%207/a/"\n{options}')
    place = mqtt_place(flow)
    assert place[:5] == ("h", 8884, "plant 7/a/", "plant", "quite secret")
    assert isinstance(place.tls, ssl.SSLContext)
    assert "secret" not in repr(flow.said)
    (flow,) = flows_of(tmp_path, f'{FROM}to = "mqtt://[::1]"')
    assert mqtt_place(flow) == ("::1", 1883, "", "", "", None)
    assert str(mqtt_place(flow)) == "MQTT, ::1:1883"


def brought(tmp_path: Path, text: str) -> list[Flow]:
    """Flows from a broker, seen to be right as their process would."""
    path = tmp_path / "flows.toml"
    path.write_text(f"[flow.alarms]\n{text}\n")
    flows = read_flows(path)
    for flow in flows:
        runner_of(flow, Client("unix:///nowhere"), "")
    return flows


def test_a_flow_from_a_broker_has_a_topic_filter(tmp_path: Path) -> None:
    (flow,) = brought(tmp_path, 'from = "mqtt://h/plant/+/#"\nto = "penstock:"')
    assert mqtt_place(flow, "from") == ("h", 1883, "plant/+/#", "", "", None)
    (flow,) = brought(tmp_path, 'from = "mqtts://[::1]:99/$share/g/a%20b"\nto = "penstock:"')
    assert mqtt_place(flow, "from")[:3] == ("::1", 99, "$share/g/a b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('from = "mqtt://h"\nto = "penstock:"', "flow.alarms.from: '' is no topic filter"),
        ('from = "mqtt://h/a/#/b"\nto = "penstock:"', "flow.alarms.from: 'a/#/b' is no topic filter"),
        ('from = "mqtt://me:pw@h/a"\nto = "penstock:"', "flow.alarms.from: a URL has no password here"),
        ('from = "mqtt://h/a"\nto = "file:///x"', "flow.alarms.to: what comes from MQTT goes to a store"),
        ('from = "mqtt://h/a"\nto = "penstock:"\nstart = "now"', "start: it means nothing to a flow from MQTT"),
        ('from = "mqtt://h/a"\nto = "penstock:"\nmqtt.qos = 2', "mqtt.qos: a flow takes messages at QoS 1 at most"),
        ('from = "mqtt://h/a"\nto = "penstock:"\nmqtt.session_s = -1', "mqtt.session_s: expected `int` >= 0"),
        ('from = "mqtt://h/a"\nto = "penstock:"\nwhere = "client_id == \'x\'"', "flow.alarms.where: "),
    ],
)
def test_errors_of_flows_from_an_mqtt_broker_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        brought(tmp_path, text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('to = "mqtts://h/x"\nca_file = "/ca.pem"', "flow.alarms.ca_file: /ca.pem: "),
        ('to = "mqtt:x"', "flow.alarms.to: 'mqtt:x' names no host with a path alone; say mqtt://HOST"),
        ('to = "mqtt://h:port/x"', "flow.alarms.to: 'mqtt://h:port/x': Port could not be cast"),
        ('to = "mqtt://h/x?qos=1"', "names no host with a path alone"),
        ('to = "mqtt://h/a/%23"', "flow.alarms.to: 'a/#/' begins no topic"),
        ('to = "mqtt://me:pw@h/x"', "flow.alarms.to: a URL has no password here"),
        ('to = "mqtt://h/x"\nformat = "cloudevents-batch"', "flow.alarms.format: a message of MQTT is one event"),
        (
            'to = "mqtt://h/x"\nformat = "cloudevents-binary"\nmqtt.version = "3.1.1"',
            "flow.alarms.format: MQTT 3.1.1 has no user properties for it",
        ),
        ('to = "mqtt://h/x"\nmqtt.version = "4"', "flow.alarms.mqtt.version: invalid enum value '4'"),
        ('to = "mqtt://h/x"\nmqtt.qos = 3', "flow.alarms.mqtt.qos: invalid enum value 3"),
        ('to = "mqtt://h/x"\nmqtt.usr = "me"', "flow.alarms.mqtt: `usr` is not known; is `user`"),
        ('to = "mqtt://h/x"\nmqtt.password = { file = "/none" }', "flow.alarms.mqtt.password: /none: "),
    ],
)
def test_errors_of_flows_to_an_mqtt_broker_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        flows_of(tmp_path, FROM + text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_password_comes_with_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTT_PASSWORD", "quite secret")
    with pytest.raises(UsageError, match=r"a password comes with a user; say mqtt\.user"):
        flows_of(tmp_path, f'{FROM}to = "mqtt://h"\nmqtt.password = {{ env = "MQTT_PASSWORD" }}')
