"""Flows to Kafka as a file has them: what is wrong is one line, before anything starts."""

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.flows.kafka_place import kafka_place
from tests.support.certificates import authority
from tests.unit.penstock.flows.test_definition import flows_of

TO = 'from = "plant/#"\nto = "kafka://b1:9092,[::1]:9093/telemetry"\n'


def test_kafka_client_options_of_a_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "quite secret")
    options = 'kafka = { user = "penstock", password = { env = "KAFKA_PASSWORD" }, exactly_once = true }'
    ca_file = authority(tmp_path, "ca").certificate
    (flow,) = flows_of(tmp_path, TO.replace("kafka://", "kafkas://") + f'ca_file = "{ca_file}"\n{options}')
    place = kafka_place(flow, "to", flow.said.to)
    assert (place.servers, place.topic) == ("b1:9092,[::1]:9093", "telemetry")
    assert place.config["security.protocol"] == "SASL_SSL"
    assert place.config["ssl.ca.location"] == str(ca_file)
    assert place.config["sasl.password"] == "quite secret"
    assert "quite secret" not in f"{flow!r}{flow.said!r}"
    assert "security.protocol" in kafka_place(flows_of(tmp_path, TO)[0], "to", flow.said.to).config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('to = "kafkas://b1:9092/telemetry"\nca_file = "/ca.pem"', "flow.alarms.ca_file: /ca.pem: "),
        ('to = "kafka://b1/telemetry"', "flow.alarms.to: 'kafka://b1/telemetry' names no brokers with their ports"),
        ('to = "kafka:telemetry"', "flow.alarms.to: 'kafka:telemetry' names no brokers"),
        ('to = "kafka://b1:9092/a/b"', "flow.alarms.to: 'a/b' is no topic of Kafka"),
        ('to = "kafka://b1:9092/"', "flow.alarms.to: says no topic; say kafka://HOST:9092/TOPIC, or map.topic"),
        ('to = "kafka://me:pw@b1:9092/t"', "flow.alarms.to: a URL has no password here"),
        ('to = "kafka://b1:9092/t"\nformat = "cloudevents-batch"', "flow.alarms.format: a record of Kafka is one"),
        ('to = "kafka://b1:9092/t"\nkafka.user = "me"', "flow.alarms.kafka: a user comes with a password"),
        (
            'to = "kafka://b1:9092/t"\nkafka.exactly = true',
            "flow.alarms.kafka: `exactly` is not known; is `exactly_once`",
        ),
        ('to = "kafka://b1:9092/t"\nkafka.id = "a b"', "flow.alarms.kafka.id: expected `str` matching regex"),
        ('to = "kafka://b1:9092/t"\nkafka.mechanism = "MD5"', "flow.alarms.kafka.mechanism: invalid enum value"),
    ],
)
def test_errors_of_flows_to_kafka_are_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        flows_of(tmp_path, f'from = "plant/#"\n{text}')
    assert told in str(error.value)
    assert "\n" not in str(error.value)
