"""The chart's output is valid and consistent, and its values reach the programs."""

import re
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from penstock.config.operations_docs import all_figures
from store.version import VERSION
from tests.helm.chart import (
    CHART,
    HERE,
    NAMESPACE,
    OLDEST_KUBERNETES,
    VALUES,
    Object,
    Rendered,
    helm,
    pod_labels,
    pod_of,
    ports_of,
    quantity,
    render,
    values_of,
    variables_of,
)

# The two that NOTES and values speak of as given by somebody else.
SECRETS_OF_OTHERS = {
    "penstock-shared-token",
    "penstock-store-certificate",
    "penstock-gateway-certificate",
    "redis-address",
    "mqtt-certificate",
    "mqtt-auth",
    "console-certificate",
}
OPERATOR_KINDS = {"ServiceMonitor", "PrometheusRule"}
CLIENT_PORTS = {"mqtt", "mqtts", "ws", "wss"}


def test_helm_finds_nothing_to_complain_about(values_name: str) -> None:
    done = helm("lint", "--strict", CHART, "--values", VALUES[values_name])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, kubernetes_validate.latest_version()])
def test_every_object_is_one_that_kubernetes_takes(values_name: str, version: str) -> None:
    rendered = render("--values", VALUES[values_name], "--kube-version", version)
    assert {"StatefulSet", "Deployment", "Service", "PodDisruptionBudget"} <= {it["kind"] for it in rendered.objects}
    for thing in rendered.objects:
        if thing["kind"] in OPERATOR_KINDS:
            schema = yaml.safe_load((HERE / f"{thing['kind'].lower()}.schema.yaml").read_text())
            jsonschema.Draft202012Validator(schema).validate(thing)
        else:
            kubernetes_validate.validate(thing, version, strict=True)


@pytest.mark.parametrize("release", ["r", "penstock", "a-release-with-the-longest-name-that-helm-lets-people-giv"])
def test_names_are_valid_and_distinct(release: str) -> None:
    rendered = render("--values", VALUES["everything"], "--set", "fullnameOverride=", release=release[:53])
    names = [(thing["kind"], thing["metadata"]["name"]) for thing in rendered.objects]
    assert len(set(names)) == len(names)
    for kind, name in names:
        # Of a StatefulSet's name the pods' names and a label with a hash are made.
        assert len(name) <= (52 if kind == "StatefulSet" else 63)
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)


def test_everything_carries_the_labels_that_helm_users_know(rendered: Rendered) -> None:
    for thing in rendered.objects:
        labels = thing["metadata"]["labels"]
        wanted = ("name", "instance", "version", "managed-by", "part-of")
        assert {f"app.kubernetes.io/{name}" for name in wanted} | {"helm.sh/chart"} <= labels.keys()
        for workload in rendered.workloads:
            # Not what changes with every version of the chart: the pods would start again for it.
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & pod_labels(workload).keys()
    assert len({thing["metadata"].get("namespace", NAMESPACE) for thing in rendered.objects}) == 1


def test_selectors_find_the_pods_that_they_are_meant_for(rendered: Rendered) -> None:
    for workload in rendered.workloads:
        selector = workload["spec"]["selector"]["matchLabels"]
        assert rendered.selected(selector) == [workload]
        for spread in pod_of(workload).get("topologySpreadConstraints", []):
            assert spread["labelSelector"]["matchLabels"] == selector
    for thing in rendered.objects:
        selectors = {
            "Service": lambda spec: spec["selector"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        }
        if thing["kind"] in selectors:
            found = rendered.selected(selectors[thing["kind"]](thing["spec"]))
            component = thing["metadata"]["labels"]["app.kubernetes.io/component"]
            assert found == [rendered.workload(component)], thing["metadata"]["name"]
    for component in ("store", "gateway"):
        rendered.one("PodDisruptionBudget", component)


def test_services_lead_to_ports_that_the_pods_have(rendered: Rendered) -> None:
    for service in rendered.of_kind("Service"):
        (workload,) = rendered.selected(service["spec"]["selector"])
        (container,) = pod_of(workload)["containers"]
        for port in service["spec"]["ports"]:
            number = ports_of(container)[port["targetPort"]]
            # Only the one for clients may be on another port than the pods.
            assert port["port"] == number or port["name"] in CLIENT_PORTS
        names = {port["name"].partition("-")[0] for port in service["spec"]["ports"]}  # mqtts-8884 is a namespace's
        assert names & CLIENT_PORTS or service["spec"].get("type", "ClusterIP") == "ClusterIP"
        assert names <= CLIENT_PORTS or not names & CLIENT_PORTS  # the admin port is not for clients


def test_clients_come_in_as_the_values_say() -> None:
    rendered = render("--values", VALUES["security"])
    container = rendered.container("gateway")
    assert [each for each in container["args"] if each.startswith("--listen=")] == [
        "--listen=mqtts://0.0.0.0:8883",
        "--listen=ws://0.0.0.0:8080",
        "--listen=wss://0.0.0.0:8443",
    ]
    service = next(it for it in rendered.of_kind("Service") if it["metadata"]["name"].endswith("plant-penstock"))
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {"mqtts": 8884, "ws": 8080, "wss": 8443}
    policy = next(it for it in rendered.of_kind("NetworkPolicy") if it["metadata"]["name"].endswith("-gateway"))
    assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == [8883, 8080, 8443]


def test_each_file_that_clients_are_judged_by_is_mounted() -> None:
    rendered = render("--values", VALUES["security"])
    container, pod = rendered.container("gateway"), pod_of(rendered.workload("gateway"))
    folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    there = {
        f"{folders[volume['name']]}/{item['path']}"
        for volume in pod["volumes"]
        for source in ("secret", "configMap")
        for item in volume.get(source, {}).get("items", [])
    }
    variables = {name: each.get("value", "") for name, each in variables_of(container).items()}
    files = {name: value for name, value in variables.items() if value.startswith("/etc/penstock/")}
    assert set(files.values()) <= there
    assert files.keys() >= {
        "PENSTOCK_AUTH__PASSWORD_FILE",
        "PENSTOCK_AUTH__JWT_KEYS_FILE",
        "PENSTOCK_AUTH__HTTP_HEADER_FILE",
        "PENSTOCK_AUTH__PERMISSIONS_FILE",
        "PENSTOCK_GATEWAY__TLS_CERTIFICATE",
        "PENSTOCK_GATEWAY__TLS_KEY",
        "PENSTOCK_GATEWAY__TLS_CLIENT_CA_FILE",
    }


def test_the_store_is_one_pod_with_a_volume_under_a_name_of_its_own(rendered: Rendered, values_name: str) -> None:
    store = rendered.one("StatefulSet")
    service = next(it for it in rendered.of_kind("Service") if it["metadata"]["name"] == store["spec"]["serviceName"])
    assert service["spec"]["clusterIP"] == "None"
    assert store["spec"]["replicas"] == 1
    (claim,) = store["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == values_of(values_name)["store"]["persistence"]["size"]
    container = rendered.container("store")
    mount = next(it for it in container["volumeMounts"] if it["name"] == claim["metadata"]["name"])
    (data,) = (it.removeprefix("--data=") for it in container["args"] if it.startswith("--data="))
    assert data.startswith(mount["mountPath"] + "/")
    scheme = "tls" if values_of(values_name)["tls"]["enabled"] else "tcp"
    assert f"--listen={scheme}://0.0.0.0:{ports_of(container)['wire']}" in container["args"]
    address = f"--store={scheme}://{service['metadata']['name']}:{ports_of(container)['wire']}"
    assert address in rendered.container("gateway")["args"]


def test_references_lead_somewhere(rendered: Rendered, values_name: str) -> None:
    made = {secret["metadata"]["name"]: set(secret["data"]) for secret in rendered.of_kind("Secret")}
    assert not made.keys() & SECRETS_OF_OTHERS
    values = values_of(values_name)
    assert len(made) == (not values["token"]["existingSecret"]) + (
        (values["tls"]["enabled"] and not values["tls"]["existingSecret"]) + values["redis"]["enabled"]
    )
    accounts = {account["metadata"]["name"] for account in rendered.of_kind("ServiceAccount")} or {"messaging"}
    for workload in rendered.workloads:
        pod = pod_of(workload)
        (container,) = pod["containers"]
        assert pod["serviceAccountName"] in accounts
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes.keys() | claims
        used = [it["secret"] for it in volumes.values() if "secret" in it]
        needed = [(it["secretName"], {item["key"] for item in it["items"]}) for it in used]
        given = [it["valueFrom"]["secretKeyRef"] for it in variables_of(container).values() if "valueFrom" in it]
        needed += [(it["name"], {it["key"]}) for it in given]
        for name, keys in needed:
            assert name in SECRETS_OF_OTHERS or keys <= made[name]


@pytest.mark.catalogue("H31")
def test_gateways_scale_by_what_a_prometheus_adapter_gives(everything: Rendered) -> None:
    scaler = everything.one("HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]
    deployment = everything.workload("gateway")
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    assert target["apiVersion"] == deployment["apiVersion"]
    assert "replicas" not in deployment["spec"]
    requests = everything.container("gateway")["resources"]["requests"]
    resources = {it["resource"]["name"]: it["resource"]["target"] for it in _metrics(scaler, "Resource")}
    assert resources.keys() == {"cpu", "memory"} <= requests.keys()  # percent of what is requested
    assert {name: it["averageUtilization"] for name, it in resources.items()} == {"cpu": 60, "memory": 75}
    pods = {it["pods"]["metric"]["name"]: it["pods"]["target"]["averageValue"] for it in _metrics(scaler, "Pods")}
    assert {name: quantity(value) for name, value in pods.items()} == {
        "penstock_connections": 50_000,
        "penstock_messages_received_per_second": 1_500_000,
        "penstock_latency_seconds": 1.5,
    }
    assert pods.keys() == {rule["name"]["as"] for rule in _adapter_rules()}
    (external,) = _metrics(scaler, "External")
    assert external["external"]["target"] == {"type": "AverageValue", "averageValue": "40000"}
    (rule,) = _adapter_rules("external")
    assert external["external"]["metric"]["name"] == rule["name"]["as"]
    assert {"scaleUp", "scaleDown"} == scaler["spec"]["behavior"].keys()


def _metrics(scaler: Object, kind: str) -> list[Object]:
    return [metric for metric in scaler["spec"]["metrics"] if metric["type"] == kind]


def _adapter_rules(kind: str = "custom") -> list[Object]:
    document = yaml.safe_load((CHART / "examples" / "prometheus-adapter.yaml").read_text())
    rules: list[Object] = document["rules"][kind]
    return rules


def test_the_adapter_asks_for_metrics_that_gateways_have() -> None:
    have = {
        figure.name + suffix
        for _, figure in all_figures()
        for suffix in (("_bucket", "_count", "_sum") if figure.kind == "histogram" else ("",))
    }
    for rule in _adapter_rules():
        asked = set(re.findall(r"\bpenstock_\w+", rule["seriesQuery"] + rule["metricsQuery"]))
        assert asked <= have
        assert rule["resources"]["overrides"].keys() == {"namespace", "pod"}
        assert rule["metricsQuery"].count("<<.LabelMatchers>>") == rule["metricsQuery"].count("<<.GroupBy>>")


def test_targets_can_be_left_out(minimal: Rendered) -> None:
    assert not minimal.of_kind("HorizontalPodAutoscaler")
    scaler = render("--values", VALUES["autoscaling-without-adapter"]).one("HorizontalPodAutoscaler")
    assert [metric["type"] for metric in scaler["spec"]["metrics"]] == ["Resource", "Resource"]
    assert render("--values", VALUES["no-autoscaling"]).workload("gateway")["spec"]["replicas"] == 5


def test_prometheus_finds_the_pods_and_not_twice(everything: Rendered) -> None:
    monitor = everything.one("ServiceMonitor")
    labels = monitor["spec"]["selector"]["matchLabels"]
    (endpoint,) = monitor["spec"]["endpoints"]
    found = [
        service["metadata"]["labels"]["app.kubernetes.io/component"]
        for service in everything.of_kind("Service")
        if labels.items() <= service["metadata"]["labels"].items()
        and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    ]
    assert sorted(found) == ["gateway", "store"]
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == [NAMESPACE]


def test_pods_start_again_with_another_token(minimal: Rendered) -> None:
    other = render("--values", VALUES["minimal"], "--set", "token.value=another")
    for component in ("store", "gateway"):
        before, after = (
            it.workload(component)["spec"]["template"]["metadata"]["annotations"] for it in (minimal, other)
        )
        assert before["checksum/secrets"] != after["checksum/secrets"]


def test_the_chart_installs_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION


def test_the_readme_names_every_section_of_the_values() -> None:
    sections = yaml.safe_load((CHART / "values.yaml").read_text()).keys()
    text = Path(CHART / "README.md").read_text()
    assert not [section for section in sections if f"`{section}" not in text]
