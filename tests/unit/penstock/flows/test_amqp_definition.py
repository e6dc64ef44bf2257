"""Flows to AMQP as a file has them: what is wrong is one line, before anything starts."""

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.flows.amqp_place import amqp_place
from penstock.flows.definition import Flow, read_flows
from penstock.flows.process import runner_of
from penstock.sdk.client import Client
from tests.support.certificates import authority
from tests.unit.penstock.flows.test_definition import flows_of

FROM = 'from = "plant/#"\n'


def test_amqp_client_options_of_a_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_PASSWORD", "quite secret")
    options = 'amqp = { user = "penstock", password = { env = "AMQP_PASSWORD" }, vhost = "plant" }'
    ca_file = authority(tmp_path, "ca").certificate
    (flow,) = flows_of(tmp_path, f'{FROM}to = "amqps://h:5673/a%2Fb"\nca_file = "{ca_file}"\n{options}')
    place = amqp_place(flow)
    assert place[:6] == ("h", 5673, "a/b", "plant", "penstock", "quite secret")
    assert place.tls is not None
    assert "quite secret" not in f"{flow!r}{flow.said!r}{place}"
    (flow,) = flows_of(tmp_path, f'{FROM}to = "amqp://[::1]/telemetry"')
    assert amqp_place(flow)[:7] == ("::1", 5672, "telemetry", "/", "guest", "guest", None)
    (flow,) = flows_of(tmp_path, f'{FROM}to = "amqps://h/"')
    assert amqp_place(flow)[:3] == ("h", 5671, "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('to = "amqps://h/x"\nca_file = "/ca.pem"', "flow.alarms.ca_file: /ca.pem: "),
        ('to = "amqp:telemetry"', "flow.alarms.to: 'amqp:telemetry' names no host with an exchange alone"),
        ('to = "amqp://h:port/x"', "flow.alarms.to: 'amqp://h:port/x': Port could not be cast"),
        ('to = "amqp://h/x?heartbeat=1"', "names no host with an exchange alone; say amqp://HOST/EXCHANGE"),
        ('to = "amqp://h/vhost/x"', "flow.alarms.to: 'vhost/x' is no exchange; say its name alone"),
        (f'to = "amqp://h/{"x" * 256}"', "is no exchange"),
        ('to = "amqp://me:pw@h/x"', "flow.alarms.to: a URL has no password here"),
        ('to = "amqp://h/x"\nformat = "cloudevents-batch"', "flow.alarms.format: a message of AMQP is one event"),
        ('to = "amqp://h/x"\namqp.user = "me"', "flow.alarms.amqp: a user comes with a password"),
        ('to = "amqp://h/x"\namqp.vhst = "me"', "flow.alarms.amqp: `vhst` is not known; is `vhost`"),
        ('to = "amqp://h/x"\namqp.vhost = ""', "flow.alarms.amqp.vhost: expected `str` of length >= 1"),
    ],
)
def test_errors_of_flows_to_amqp_are_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        flows_of(tmp_path, f"{FROM}{text}")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


IN = 'to = "penstock:"\n'


def flow_of(tmp_path: Path, text: str) -> Flow:
    (tmp_path / "flows.toml").write_text(f"[flow.alarms]\n{text}")
    (flow,) = read_flows(tmp_path / "flows.toml")
    runner_of(flow, Client("unix:///nowhere"), "penstock://store")
    return flow


def test_amqp_consumer_options_of_a_flow(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, f'{IN}from = "amqps://h/a%2Fb"\namqp = {{ vhost = "plant", prefetch = 7 }}')
    place = amqp_place(flow, "from")
    assert place[:6] == ("h", 5671, "a/b", "plant", "guest", "guest")
    assert place.what == "queue 'a/b'"
    assert flow.said.amqp.prefetch == 7


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('from = "amqp://h/q"\nto = "https://h"', "flow.alarms.to: what comes from AMQP goes to a store"),
        (f'{IN}from = "amqp://h/"', "flow.alarms.from: '' is no queue; say its name alone"),
        (f'{IN}from = "amqp://h"', "flow.alarms.from: '' is no queue; say its name alone"),
        (f'{IN}from = "amqp:q"', "flow.alarms.from: 'amqp:q' names no host with a queue alone; say amqp://HOST/QUEUE"),
        (f'{IN}from = "amqp://me:pw@h/q"', "flow.alarms.from: a URL has no password here; say amqp = { user"),
        (f'{IN}from = "amqp://h/q"\nstart = "now"', "flow.alarms.start: it means nothing to a flow from AMQP"),
        (
            f'{IN}from = "amqp://h/q"\nbatch = 7',
            "flow.alarms.batch: it means nothing to a flow from AMQP; leave it out",
        ),
        (f'{IN}from = "amqp://h/q"\namqp.prefetch = 0', "flow.alarms.amqp.prefetch: expected `int` >= 1"),
        (
            f'{IN}from = "amqp://h/q"\nwhere = "qos > 1"',
            "flow.alarms.where: character 1: undeclared reference to 'qos'",
        ),
        (
            f'{FROM}to = "amqp://h/x"\namqp.prefetch = 7',
            "flow.alarms.amqp.prefetch: it means nothing to a flow to AMQP",
        ),
    ],
)
def test_errors_of_flows_from_an_amqp_queue_are_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        flow_of(tmp_path, text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
