"""Rules of the pods with any values: little may be done in them and to them, and they stop in peace."""

import base64
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helm.chart import (
    CHART,
    VALUES,
    Object,
    Rendered,
    component_of,
    pod_labels,
    pod_of,
    ports_of,
    quantity,
    render,
    strings_in,
    values_of,
    variables_of,
)
from tests.support.server_process import free_port, wait_for_port


def test_pods_do_not_run_as_root(rendered: Rendered) -> None:
    for workload in rendered.workloads:
        pod = pod_of(workload)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["runAsGroup"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
        assert not [volume for volume in pod.get("volumes", []) if "hostPath" in volume]
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_no_pod_has_a_token_for_kubernetes(rendered: Rendered) -> None:
    for workload in rendered.workloads:
        assert pod_of(workload)["automountServiceAccountToken"] is False
        assert pod_of(workload)["enableServiceLinks"] is False
    for account in rendered.of_kind("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & {it["kind"] for it in rendered.objects}


def test_images_and_resources_are_said(rendered: Rendered) -> None:
    for workload in rendered.workloads:
        for container in pod_of(workload)["containers"]:
            assert re.fullmatch(r"[a-z0-9./-]+:[\w.-]+", container["image"])
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert {"cpu", "memory"} <= requests.keys()
            assert quantity(requests["memory"]) <= quantity(limits["memory"])


def test_secrets_are_in_secrets_only(everything: Rendered) -> None:
    values = values_of("everything")
    secrets = {values["token"]["value"], values["tls"]["key"].strip(), values["redis"]["password"]}
    for thing in everything.objects:
        if thing["kind"] != "Secret":
            assert not [text for text in strings_in(thing) for secret in secrets if secret in text]


def test_probes_cover_recovery_life_and_readiness(rendered: Rendered, values_name: str) -> None:
    recovery_s = values_of(values_name)["store"]["recoverySeconds"]
    for component in ("store", "gateway"):
        container = rendered.container(component)
        startup, liveness, readiness = (container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness"))
        for probe, page in ((startup, "/healthz"), (liveness, "/healthz"), (readiness, "/readyz")):
            assert probe["httpGet"] == {"path": page, "port": "admin"}
            assert probe["timeoutSeconds"] > 2  # the loop may take two seconds to answer
        if component == "store":  # a gateway answers while it waits for it
            assert startup["failureThreshold"] * startup["periodSeconds"] >= recovery_s
        assert f"--admin=0.0.0.0:{ports_of(container)['admin']}" in container["args"]
    for workload in rendered.workloads:
        for container in pod_of(workload)["containers"]:
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()


def test_a_gateway_has_the_time_to_drain(rendered: Rendered, values_name: str) -> None:
    drain = values_of(values_name)["gateway"]["drain"]
    container = rendered.container("gateway")
    waits_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drains_s = int(variables_of(container)["PENSTOCK_GATEWAY__DRAIN_TIMEOUT_S"]["value"])
    assert (waits_s, drains_s) == (drain["endpointsSeconds"], drain["timeoutSeconds"])
    assert pod_of(rendered.workload("gateway"))["terminationGracePeriodSeconds"] > waits_s + drains_s
    assert rendered.workload("gateway")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_only_who_must_may_connect(rendered: Rendered, values_name: str) -> None:
    values = values_of(values_name)
    if not values["networkPolicy"]["enabled"]:
        assert not rendered.of_kind("NetworkPolicy")
        return
    policies = {component_of(policy): policy["spec"] for policy in rendered.of_kind("NetworkPolicy")}
    assert policies.keys() == {component_of(workload) for workload in rendered.workloads}
    metrics_clients = values["networkPolicy"]["metricsClients"]
    for component, spec in policies.items():
        assert "Ingress" in spec["policyTypes"]
        ports = ports_of(rendered.container(str(component)))
        allowed = {port["port"]: rule.get("from") for rule in spec["ingress"] for port in rule["ports"]}
        closed = {"admin": not metrics_clients, "console": not values["networkPolicy"]["consoleClients"]}
        assert allowed.keys() == {number for name, number in ports.items() if not closed.get(name)}
        if "console" in ports:
            assert allowed == dict.fromkeys(allowed, values["networkPolicy"]["consoleClients"])
        if metrics_clients and "admin" in ports:
            assert allowed[ports["admin"]] == metrics_clients
    gateways = rendered.workload("gateway")
    to_store = policies["store"]["ingress"][0]["from"]
    assert _pods(rendered, to_store[0]) == [gateways]
    of_console = 1 if values["console"]["enabled"] else 0
    consoles = [rendered.workload("console")] if of_console else []
    assert [_pods(rendered, it) for it in to_store[1 : 1 + of_console]] == [[console] for console in consoles]
    assert to_store[1 + of_console :] == values["networkPolicy"]["storeClients"]
    assert "from" not in policies["gateway"]["ingress"][0]  # MQTT is for everybody who gets as far as here
    if "redis" in policies:
        (rule,) = policies["redis"]["ingress"]
        assert _pods(rendered, rule["from"][0]) == [gateways, rendered.workload("store")]
        assert policies["redis"]["egress"] == []


def _pods(rendered: Rendered, peer: Object) -> list[Object]:
    """The workloads whose pods a NetworkPolicy's peer stands for."""
    assert peer.keys() == {"podSelector"}
    found = rendered.selected(peer["podSelector"]["matchLabels"])
    for expression in peer["podSelector"].get("matchExpressions", []):
        assert expression["operator"] == "In"
        found = [it for it in found if pod_labels(it).get(expression["key"]) in expression["values"]]
    return found


def test_the_token_is_kept_by_who_asks_and_who_answers(rendered: Rendered) -> None:
    kept = []
    for component, variable in (
        ("store", "PENSTOCK_WIRE__GATEWAY_TOKEN_FILE"),
        ("gateway", "PENSTOCK_GATEWAY__STORE_TOKEN_FILE"),
    ):
        container = rendered.container(component)
        file = variables_of(container)[variable]["value"]
        mount = next(mount for mount in container["volumeMounts"] if file.startswith(mount["mountPath"] + "/"))
        volumes = pod_of(rendered.workload(component))["volumes"]
        secret = next(volume["secret"] for volume in volumes if volume["name"] == mount["name"])
        item = secret["items"][0]
        assert item["path"] == file.removeprefix(mount["mountPath"] + "/")
        kept.append((secret["secretName"], item["key"]))
    assert kept[0] == kept[1]


def test_tls_is_used_by_both_sides_or_by_neither(rendered: Rendered, values_name: str) -> None:
    given = variables_of(rendered.container("gateway")).keys() | variables_of(rendered.container("store")).keys()
    wanted = {"PENSTOCK_GATEWAY__STORE_CA_FILE", "PENSTOCK_WIRE__TLS_CERTIFICATE", "PENSTOCK_WIRE__TLS_KEY"}
    assert wanted & given == (wanted if values_of(values_name)["tls"]["enabled"] else set())
    for workload in rendered.workloads:
        (container,) = pod_of(workload)["containers"]
        files = [it["value"] for it in variables_of(container).values() if it.get("value", "").startswith("/etc/")]
        volumes = {
            it["name"]: it[source]["items"]
            for it in pod_of(workload).get("volumes", [])
            for source in ("secret", "configMap")
            if source in it
        }
        mounted = {
            f"{mount['mountPath']}/{item['path']}"
            for mount in container.get("volumeMounts", [])
            for item in volumes.get(mount["name"], [])
        }
        assert set(files) == (set() if component_of(workload) == "redis" else mounted)


def test_the_key_of_the_store_is_not_on_the_gateways() -> None:
    for name in ("everything", "existing-secrets"):
        pod = pod_of(render("--values", VALUES[name]).workload("gateway"))
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "tls")
        assert [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]


def _decoded(secret: Object) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def test_redis_wants_a_password_that_the_others_have() -> None:
    for given, expected in (("", r"[A-Za-z0-9]{40}"), ("chosen1", "chosen1")):
        rendered = render("--values", VALUES["everything"], "--set", f"redis.password={given}")
        secret = rendered.one("Secret", "redis")
        held, name = _decoded(secret), secret["metadata"]["name"]
        assert re.fullmatch(expected, held["password"])
        assert held["url"] == f"redis://:{held['password']}@{name}:6379/0"
        assert held["redis.conf"] == f"requirepass {held['password']}\n"
        container = rendered.container("redis")
        assert container["args"][0] == "/etc/redis/redis.conf"
        (volume,) = (it for it in pod_of(rendered.workload("redis"))["volumes"] if it["name"] == "auth")
        assert volume["secret"]["secretName"] == name
        assert variables_of(container)["REDISCLI_AUTH"]["valueFrom"]["secretKeyRef"] == {
            "name": name,
            "key": "password",
        }
        for component in ("store", "gateway"):
            url = variables_of(rendered.container(component))["PENSTOCK_NOTIFY__REDIS_URL"]
            assert url["valueFrom"]["secretKeyRef"] == {"name": name, "key": "url"}


def test_redis_takes_what_it_is_given(tmp_path: Path) -> None:
    """The very file and arguments, with a real Redis."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("redis-server is missing; apt-get install redis-server")
    rendered = render("--values", VALUES["everything"], "--set", "redis.password=chosen1")
    conf = tmp_path / "redis.conf"
    conf.write_text(_decoded(rendered.one("Secret", "redis"))["redis.conf"])
    port = str(free_port())
    arguments = [
        {"/etc/redis/redis.conf": str(conf), "6379": port}.get(it, it) for it in rendered.container("redis")["args"]
    ]
    process = subprocess.Popen([server, *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_for_port(int(port), process)
        assert "NOAUTH" in _redis_cli(port, {})
        assert _redis_cli(port, {"REDISCLI_AUTH": "chosen1"}) == "PONG\n"
    finally:
        process.kill()
        process.wait()


def _redis_cli(port: str, variables: dict[str, str]) -> str:
    command = ["redis-cli", "-p", port, "ping"]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=30).stdout


def test_not_every_pod_may_ask_for_metrics() -> None:
    peers = yaml.safe_load((CHART / "values.yaml").read_text())["networkPolicy"]["metricsClients"]
    for peer in peers:
        assert peer["namespaceSelector"]["matchLabels"]
        assert peer["podSelector"]["matchLabels"]


PLAIN = "--listen=mqtt://0.0.0.0:1883"
TLS = ("--set=gateway.tls.existingSecret=certificate",)


def test_plain_mqtt_is_off_beside_tls_unless_it_is_asked_for() -> None:
    def has_plain(*arguments: str) -> bool:
        rendered = render("--values", VALUES["minimal"], *TLS, *arguments)
        listens = PLAIN in rendered.container("gateway")["args"]
        ports = {port["name"] for service in rendered.of_kind("Service") for port in service["spec"]["ports"]}
        assert listens == ("mqtt" in ports) == ("mqtt" in ports_of(rendered.container("gateway")))
        return listens

    assert has_plain()
    assert has_plain("--set=gateway.listeners.ws=true")
    assert not has_plain("--set=gateway.listeners.mqtts=true")
    assert not has_plain("--set=gateway.listeners.wss=true")
    assert has_plain("--set=gateway.listeners.mqtts=true,gateway.listeners.mqtt=true")
    assert not has_plain("--set=gateway.listeners.ws=true,gateway.listeners.mqtt=false")


def test_the_tls_example_of_the_readme_has_no_plain_mqtt() -> None:
    text = (CHART / "README.md").read_text()
    example = text.split("TLS and WebSocket for clients", 1)[1]
    command = re.search(r"helm install (.*?)\n\n", example, re.DOTALL)
    assert command is not None
    arguments = shlex.split(command[1].replace("\\\n", " "))[2:]
    listens = [it for it in render(*arguments).container("gateway")["args"] if it.startswith("--listen=")]
    assert sorted(listens) == ["--listen=mqtts://0.0.0.0:8883", "--listen=wss://0.0.0.0:8443"]
