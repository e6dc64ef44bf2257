"""Flows to MQTT brokers as a file has them: what is wrong is one line, before anything starts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.flows.mqtt_place import mqtt_place
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('to = "mqtts://h/x"\nca_file = "/ca.pem"', "flow.alarms.ca_file: /ca.pem: "),
        ('to = "mqtt:x"', "flow.alarms.to: 'mqtt:x' names no host with a prefix alone; say mqtt://HOST"),
        ('to = "mqtt://h:port/x"', "flow.alarms.to: 'mqtt://h:port/x': Port could not be cast"),
        ('to = "mqtt://h/x?qos=1"', "names no host with a prefix alone"),
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
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        flows_of(tmp_path, FROM + text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_password_comes_with_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTT_PASSWORD", "quite secret")
    with pytest.raises(UsageError, match=r"a password comes with a user; say mqtt\.user"):
        flows_of(tmp_path, f'{FROM}to = "mqtt://h"\nmqtt.password = {{ env = "MQTT_PASSWORD" }}')
