"""The chart's values: a mistake is refused in words, and the lists of values agree with each other."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config.settings_tree import SETTINGS
from tests.helm.chart import CHART, VALUES, render, template, variables_of

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())

REFUSED = {
    "a misspelt section": ("gatway: {replicas: 3}", "gatway"),
    "a misspelt value": ("gateway: {allowAnonymous: true, replica: 3}", "replica"),
    "a misspelt value deep inside": (
        "gateway: {autoscaling: {targets: {conections: 5}}}",
        "conections",
    ),
    "a misspelt policy": ("gateway: {autoscaling: {behavior: {scaleUp: {policy: []}}}}", "policy"),
    "a text for a number": ('gateway: {replicas: "three"}', "/gateway/replicas"),
    "a fraction of a gateway": ("gateway: {replicas: 1.5}", "/gateway/replicas"),
    "a size without a unit that there is": ("store: {persistence: {size: 20 GB}}", "/store/persistence/size"),
    "a kind of Service that there is not": ("gateway: {service: {type: Balancer}}", "/gateway/service/type"),
    "an address that is not Redis'": ("redis: {externalUrl: 'http://redis:6379'}", "/redis/externalUrl"),
    "a setting that is not named like one": ("settings: {storeFlush: async}", "storeFlush"),
    "a setting that the chart sets itself": ("settings: {gateway.store_token: abc}", "gateway.store_token"),
    "a setting with a value of no kind": ("settings: {store.live_only: [1]}", "/settings/store.live_only"),
    "a gateway for everybody by mistake": (
        "gateway: {allowAnonymous: false}",
        "set it to true if every client that reaches",
    ),
    "nobody to listen": ("gateway: {listeners: {mqtt: false}}", "all are off"),
    "TLS for clients without a certificate": ("gateway: {listeners: {wss: true}}", "gateway.tls.existingSecret"),
    "files of a Secret that is not named": ("gateway: {auth: {files: {password_file: p}}}", "auth.existingSecret"),
    "rules twice": (
        "gateway: {auth: {existingSecret: s, files: {permissions_file: p}, permissionsConfigMap: c}}",
        "keep one",
    ),
    "TLS without a certificate": ("tls: {enabled: true}", "name a Secret with tls.existingSecret"),
    "TLS with half a certificate": ("tls: {enabled: true, certificate: a, key: b}", "tls.certificate, tls.key and"),
    "a list of what nobody shows": ("gateway: {tls: {crlConfigMap: revoked}}", "set gateway.tls.clientCertificates"),
    "certificates of gateways without TLS": ("tls: {gateways: {existingSecret: s, name: gw}}", "need tls.enabled"),
    "a proxy that is no network": ("gateway: {proxies: [everywhere]}", "/gateway/proxies/0"),
    "a namespace at the port of all": (
        "gateway: {namespaces: [{namespace: acme, scheme: mqtt, port: 1883}]}",
        "port 1883 is that of another listener",
    ),
    "two namespaces at one port": (
        "gateway: {namespaces: [{namespace: a, scheme: ws, port: 2000}, {namespace: b, scheme: ws, port: 2000}]}",
        "port 2000 is that of another listener",
    ),
    "a namespace that has no such name": (
        "gateway: {namespaces: [{namespace: Acme, scheme: mqtt, port: 1884}]}",
        "/gateway/namespaces/0/namespace",
    ),
    "TLS of a namespace without a certificate": (
        "gateway: {namespaces: [{namespace: acme, scheme: mqtts, port: 8884}]}",
        "gateway.namespaces: mqtts and wss need a certificate",
    ),
    "tokens of namespaces without any": ("token: {namespaces: {enabled: true}}", "there are no tokens"),
    "a console for everybody by mistake": ("console: {enabled: true}", "or console.allowOpen to true"),
    "an Ingress to no console": ("console: {ingress: {enabled: true}}", "set console.enabled"),
    "an Ingress to the console without hosts": (
        "console: {enabled: true, allowOpen: true, ingress: {enabled: true}}",
        "name the hosts that browsers use",
    ),
    "an Ingress whose controller may not connect": (
        "console: {enabled: true, allowOpen: true, ingress: {enabled: true, hosts: [a]}}",
        "networkPolicy.consoleClients",
    ),
    "a console at the admin port": ("console: {enabled: true, allowOpen: true, port: 9464}", "console.port"),
    "a setting of the console that the chart sets itself": ("settings: {console.listen: a}", "console.listen"),
    "two of Redis": ("redis: {enabled: true, existingSecret: abc}", "keep one"),
    "fewer at most than at least": (
        "gateway: {autoscaling: {enabled: true, minReplicas: 5, maxReplicas: 3}}",
        "minReplicas is larger than maxReplicas",
    ),
    "nothing to scale by": (
        "gateway: {autoscaling: {enabled: true, targets: {cpuPercent: null, memoryPercent: null, connections: null, "
        "messagesPerSecond: null, latencyMilliseconds: null}}}",
        "all are null",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_refused_and_named(mistake: str, tmp_path: Path) -> None:
    values, complaint = REFUSED[mistake]
    file = tmp_path / "values.yaml"
    file.write_text(values)
    done = template("--values", VALUES["minimal"], "--values", file)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "nil pointer" not in done.stderr


def test_the_defaults_ask_for_the_one_decision_that_nobody_else_can_take() -> None:
    done = template()
    assert done.returncode != 0
    assert "gateway.allowAnonymous" in done.stderr


def _resolved(schema: Any) -> Any:
    return SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _closed_objects(schema: Any, path: str = "") -> dict[str, set[str]]:
    """The names that each object may have, by its path, where the schema lists them."""
    schema = _resolved(schema)
    if "properties" not in schema:
        return {}
    assert schema["additionalProperties"] is False, path
    found = {path: set(schema["properties"])}
    for name, inner in schema["properties"].items():
        found |= _closed_objects(inner, f"{path}.{name}")
    return found


def test_the_schema_and_the_defaults_name_the_same_values() -> None:
    for path, names in _closed_objects(SCHEMA).items():
        defaults = DEFAULTS
        for step in path.split(".")[1:]:
            defaults = defaults[step]
        assert names - {"global"} == defaults.keys(), path


def test_the_schema_is_closed_all_the_way_down() -> None:
    def check(schema: Any, path: str) -> None:
        if isinstance(schema, dict):
            assert "properties" not in schema or schema.get("additionalProperties") is False, path
            for name, inner in schema.items():
                check(inner, f"{path}.{name}")
        elif isinstance(schema, list):
            for inner in schema:
                check(inner, f"{path}[]")

    check(SCHEMA, "")


def test_the_settings_that_may_not_be_given_are_settings() -> None:
    refused = SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"]
    assert set(refused) <= SETTINGS.keys()


def test_every_setting_may_be_given_otherwise() -> None:
    refused = SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"]
    settings = [f"--set=settings.{name.replace('.', chr(92) + '.')}=5" for name in SETTINGS if name not in refused]
    console = ("--set=console.enabled=true", "--set=console.allowOpen=true")
    rendered = render("--values", VALUES["minimal"], *console, *settings)
    names = {
        variable["name"]
        for component in ("store", "gateway", "console")
        for variable in rendered.container(component)["env"]
    }
    for name, setting in SETTINGS.items():
        assert name in refused or setting.environment_names[-1] in names


def test_a_fraction_stays_one_and_a_large_number_has_all_its_digits() -> None:
    settings = (
        "--set",
        "settings.tracing\\.sample_ratio=0.25",
        "--set",
        "settings.store\\.retention_bytes=17179869184",
    )
    variables = variables_of(render("--values", VALUES["minimal"], *settings).container("store"))
    assert variables["PENSTOCK_TRACING__SAMPLE_RATIO"]["value"] == "0.25"
    assert variables["PENSTOCK_STORE__RETENTION_BYTES"]["value"] == "17179869184"
