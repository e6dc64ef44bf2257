"""Clusters, volumes and ways in that are not the usual ones, and what operators add of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helm.chart import HERE, VALUES, Rendered, pod_of, render, template, variables_of
from tests.helm.test_settings_given import Command, command_of
from tests.support.mqtt_packet_client import write_secret


@pytest.fixture
def elsewhere() -> Rendered:
    return render("--values", HERE / "elsewhere.yaml")


def addresses_of(rendered: Rendered, component: str) -> list[str]:
    arguments = rendered.container(component)["args"]
    return [it.partition("=")[2] for it in arguments if it.startswith(("--listen=", "--admin="))]


def test_a_cluster_that_has_ipv6_only() -> None:
    rendered = render("--values", VALUES["minimal"], "--set", "ipFamilies={IPv6}", "--set", "gateway.listeners.ws=true")
    assert addresses_of(rendered, "store") == ["tcp://[::]:7700", "[::]:9464"]
    assert addresses_of(rendered, "gateway") == ["mqtt://[::]:1883", "ws://[::]:8080", "[::]:9464"]
    for service in rendered.of_kind("Service"):
        assert (service["spec"]["ipFamilyPolicy"], service["spec"]["ipFamilies"]) == ("SingleStack", ["IPv6"])


def test_a_cluster_of_both_families(elsewhere: Rendered) -> None:
    assert addresses_of(elsewhere, "store") == ["tcp://[::]:7700", "[::]:9464"]
    assert addresses_of(elsewhere, "gateway") == [
        *("mqtt://[::]:1883", "ws://[::]:8080", "mqtt://[::]:1890?namespace=acme"),
        *("mqtt://0.0.0.0:1883", "ws://0.0.0.0:8080", "mqtt://0.0.0.0:1890?namespace=acme"),
        "[::]:9464",
    ]
    services = {it["metadata"]["name"]: it["spec"] for it in elsewhere.of_kind("Service")}
    for_clients = services.pop("plant-penstock")
    assert (for_clients["ipFamilyPolicy"], for_clients["ipFamilies"]) == ("RequireDualStack", ["IPv6", "IPv4"])
    assert all((it["ipFamilyPolicy"], it["ipFamilies"]) == ("SingleStack", ["IPv6"]) for it in services.values())


def test_ip_families_are_unset_by_default(minimal: Rendered) -> None:
    assert not any(service["spec"].keys() & {"ipFamilies", "ipFamilyPolicy"} for service in minimal.of_kind("Service"))
    assert addresses_of(minimal, "store") == ["tcp://0.0.0.0:7700", "0.0.0.0:9464"]


def test_the_programs_take_these_addresses(elsewhere: Rendered, tmp_path: Path) -> None:
    token_file = write_secret(tmp_path / "token", "secret\n")
    for component in ("store", "gateway"):
        command = command_of(elsewhere.container(component)).here(token_file, tmp_path / "data")
        variables = {name: value for name, value in command.variables.items() if value != "secret"}
        settings = Command(command.arguments, variables).settings()
        assert settings["admin"] == "[::]:9464"
        if component == "gateway":
            assert "mqtt://[::]:1883" in settings["gateway"]["listen"]
        else:
            assert settings["wire"]["listen"] == "tcp://[::]:7700"


def test_a_claim_that_exists(elsewhere: Rendered) -> None:
    store = elsewhere.one("StatefulSet")
    assert "volumeClaimTemplates" not in store["spec"]
    (volume,) = (it for it in pod_of(store)["volumes"] if "persistentVolumeClaim" in it)
    assert volume["persistentVolumeClaim"] == {"claimName": "data-plant-penstock-store-0"}
    mounts = {it["name"]: it["mountPath"] for it in elsewhere.container("store")["volumeMounts"]}
    assert mounts[volume["name"]] == "/var/lib/penstock"


def test_a_size_is_that_of_a_new_claim() -> None:
    rendered = render("--values", VALUES["minimal"], "--set", "store.persistence.size=40Gi")
    (claim,) = rendered.one("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "40Gi"


def test_browsers_come_by_an_ingress(elsewhere: Rendered) -> None:
    ingress = elsewhere.one("Ingress")
    assert ingress["metadata"]["annotations"] == {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"}
    assert ingress["spec"]["ingressClassName"] == "nginx"
    hosts = ["mqtt.example.com", "mqtt.example.org"]
    assert ingress["spec"]["tls"] == [{"secretName": "certificate", "hosts": hosts}]
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == hosts
    services = {it["metadata"]["name"]: it["spec"] for it in elsewhere.of_kind("Service")}
    for rule in ingress["spec"]["rules"]:
        (path,) = rule["http"]["paths"]
        assert (path["path"], path["pathType"]) == ("/mqtt", "Prefix")
        backend = path["backend"]["service"]
        assert backend["port"]["name"] == "ws"
        assert "ws" in {port["name"] for port in services[backend["name"]]["ports"]}


def test_the_ingress_leads_to_wss_where_that_alone_is_on() -> None:
    values = ["gateway.listeners.wss=true", "gateway.tls.existingSecret=c", "gateway.ingress.enabled=true"]
    values += ["gateway.ingress.hosts={a}"]
    rendered = render("--values", VALUES["minimal"], *(f"--set={value}" for value in values))
    (rule,) = rendered.one("Ingress")["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["port"]["name"] == "wss"


def test_the_load_balancer(elsewhere: Rendered) -> None:
    spec = next(it["spec"] for it in elsewhere.of_kind("Service") if it["spec"].get("type") == "LoadBalancer")
    assert spec["externalTrafficPolicy"] == "Local"
    assert spec["loadBalancerSourceRanges"] == ["192.0.2.0/24", "2001:db8::/32"]
    assert spec["loadBalancerClass"] == "example.com/internal"


def test_values_that_operators_add(elsewhere: Rendered) -> None:
    for component, priority, tier in (("store", "system-cluster-critical", "data"), ("gateway", "messaging", "edge")):
        workload = elsewhere.workload(component)
        pod = pod_of(workload)
        assert pod["priorityClassName"] == priority
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert (labels["example.com/tier"], labels["example.com/team"]) == (tier, "messaging")
        assert "example.com/tier" not in workload["spec"]["selector"]["matchLabels"]
    assert all(thing["metadata"]["labels"]["example.com/team"] == "messaging" for thing in elsewhere.objects)
    assert variables_of(elsewhere.container("store"))["TZ"]["value"] == "UTC"
    site = variables_of(elsewhere.container("gateway"))["SITE"]
    assert site["valueFrom"]["configMapKeyRef"] == {"name": "site", "key": "name"}
    for component, name, path in (("store", "scratch", "/scratch"), ("gateway", "own-ca", "/etc/own")):
        assert name in {volume["name"] for volume in pod_of(elsewhere.workload(component))["volumes"]}
        mounts = {it["name"]: it["mountPath"] for it in elsewhere.container(component)["volumeMounts"]}
        assert mounts[name] == path


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (["gateway.ingress.enabled=true", "gateway.ingress.hosts={a}"], "leads to WebSocket"),
        (["gateway.ingress.enabled=true", "gateway.listeners.ws=true"], "name the hosts"),
        (["gateway.service.externalTrafficPolicy=Local"], "not ClusterIP"),
        (["gateway.service.loadBalancerSourceRanges={192.0.2.0/24}"], "of type LoadBalancer"),
        (["ipFamilies={IPv5}"], "/ipFamilies/0"),
        (["gateway.service.externalTrafficPolicy=Global"], "externalTrafficPolicy"),
    ],
)
def test_contradictory_values_are_refused(values: list[str], complaint: str) -> None:
    done = template("--values", VALUES["minimal"], *(f"--set={value}" for value in values))
    assert done.returncode != 0
    assert re.search(complaint, done.stderr), done.stderr
