"""The chart's console: who may reach it, what it is given, and that the programs do what the chart promises."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from gateway.auth.passwords import PasswordLine, hashed
from tests.helm.chart import VALUES, Object, Rendered, pod_of, quantity, render, template, variables_of
from tests.helm.test_settings_given import Command, command_of, running
from tests.support.mqtt_packet_client import write_secret

OPEN = ("--values", VALUES["minimal"], "--set", "console.enabled=true,console.allowOpen=true")
USERS = (
    *("--values", VALUES["minimal"], "--set", "console.enabled=true"),
    *("--set", "gateway.auth.existingSecret=people,gateway.auth.files.password_file=passwords"),
    *("--set", "gateway.auth.files.permissions_file=permissions.toml"),
)
RULES = """[[rule]]
users = ["ann"]
allow = ["publish", "subscribe", "replay", "retain", "read_log", "admin"]
topics = ["#"]
"""


@pytest.fixture
def console() -> Rendered:
    return render("--values", VALUES["console"])


def test_the_console_is_off_unless_it_is_asked_for(minimal: Rendered) -> None:
    assert {it["metadata"]["labels"].get("app.kubernetes.io/component") for it in minimal.objects} >= {"store"}
    assert not [it for it in minimal.objects if it["metadata"]["name"].endswith("-console")]


def test_the_values_reach_the_program(console: Rendered) -> None:
    settings = command_of(console.container("console")).settings()
    of_console = settings["console"]
    assert settings["gateway"]["store"] == "tls://plant-penstock-store:7700"
    assert of_console["listen"] == "0.0.0.0:8443"
    assert of_console["hosts"] == [
        "plant-penstock-console",
        "plant-penstock-console.messaging",
        "plant-penstock-console.messaging.svc",
        "plant-penstock-console.messaging.svc.cluster.local",
        "console.example.com",
        "console.internal",
    ]
    assert of_console["proxies"] == ["10.0.0.0/8", "fd00::/8"]
    assert (of_console["max_streams"], of_console["session_s"], settings["log_level"]) == (20, 3_600, "warning")
    assert settings["quota"]["user_messages_per_s"] == 50
    assert of_console["tls_certificate"] == "/etc/penstock/browsers/tls.crt"
    assert of_console["allow_open_beyond_loopback"] is False
    given = variables_of(console.container("console"))
    assert not [name for name in given if "STORE__" in name and "GATEWAY__" not in name]  # what is the store's
    for component in ("store", "gateway"):  # a change of the console does not restart the others
        assert not [name for name in variables_of(console.container(component)) if "CONSOLE" in name]


def test_console_pod_is_small_and_probed_at_its_health(console: Rendered) -> None:
    deployment = console.workload("console")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    container = console.container("console")
    assert quantity(container["resources"]["requests"]["memory"]) <= 120e6
    assert container["readinessProbe"]["httpGet"] == {
        "path": "/api/v1/health",
        "port": "console",
        "scheme": "HTTPS",
    }
    assert container["livenessProbe"]["httpGet"]["path"] == "/login"  # a store that is away does not kill the console


def test_browsers_come_by_its_ingress(console: Rendered) -> None:
    ingress = console.one("Ingress", "console")
    (rule,) = ingress["spec"]["rules"]
    assert (rule["host"], rule["http"]["paths"][0]["path"]) == ("console.example.com", "/")
    backend = rule["http"]["paths"][0]["backend"]["service"]
    service = console.one("Service", "console")
    assert backend == {"name": service["metadata"]["name"], "port": {"name": "console"}}
    assert service["spec"]["ports"] == [{"name": "console", "port": 8443, "targetPort": "console"}]
    assert ingress["spec"]["tls"] == [{"secretName": "browsers-certificate", "hosts": ["console.example.com"]}]


def test_no_pod_reaches_it_unless_one_is_named() -> None:
    policies = {it["metadata"]["name"]: it["spec"] for it in render(*OPEN).of_kind("NetworkPolicy")}
    assert policies["plant-penstock-console"]["ingress"] == []


def test_a_cluster_that_has_ipv6_only() -> None:
    rendered = render(*OPEN, "--set", "ipFamilies={IPv6}")
    assert "--listen=[::]:8080" in rendered.container("console")["args"]
    assert rendered.one("Service", "console")["spec"]["ipFamilies"] == ["IPv6"]


def test_the_store_admits_the_console_and_judges_by_the_files_of_the_gateways(console: Rendered) -> None:
    store, gateway = (variables_of(console.container(component)) for component in ("store", "gateway"))
    files = {name: it for name, it in gateway.items() if name.startswith("PENSTOCK_AUTH__") and name.endswith("_FILE")}
    assert files.keys() == {"PENSTOCK_AUTH__PASSWORD_FILE", "PENSTOCK_AUTH__PERMISSIONS_FILE"}
    assert files.items() <= store.items()
    assert {"PENSTOCK_WIRE__CLIENT_TOKEN_FILE", "PENSTOCK_WIRE__OPERATOR_TOKEN_FILE"} <= store.keys()
    secret = next(it for it in console.of_kind("Secret") if it["metadata"]["name"] == "plant-penstock-token")
    tokens = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    assert tokens.keys() == {"token", "client-token", "operator-token"}
    assert len(set(tokens.values())) == 3
    mounted = _items(console, "console")
    assert mounted["token"] == {"client-token", "operator-token"}  # not the gateways' one, and no key of the store
    assert mounted["tls"] == {"ca.crt"}
    without = template("--values", VALUES["console"], "--set", "console.enabled=false,console.ingress.enabled=false")
    assert without.stdout.count("mountPath: /etc/penstock/auth") == 1  # the store asks nobody then, as before


def _items(rendered: Rendered, component: str) -> dict[str, set[str]]:
    volumes: list[Object] = pod_of(rendered.workload(component))["volumes"]
    return {it["name"]: {item["key"] for item in it["secret"]["items"]} for it in volumes if "secret" in it}


def test_the_programs_run_as_the_chart_says_and_only_users_get_in(tmp_path: Path) -> None:
    """On free ports, with the very flags and variables; the files of the Secrets are in a folder."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    files = {
        "token": write_secret(folder / "token", "of-gateways\n"),
        "client-token": write_secret(folder / "client-token", "of-clients\n"),
        "operator-token": write_secret(folder / "operator-token", "of-operators\n"),
        "passwords": write_secret(folder / "passwords", PasswordLine(hashed("first"), "").text("ann") + "\n"),
        "permissions.toml": write_secret(folder / "permissions.toml", RULES),
    }
    rendered = render(*USERS)

    def command(component: str, port: int = 0) -> Command:
        found = command_of(rendered.container(component)).here(files["token"], tmp_path / "data", port)
        variables = {
            name: str(files.get(Path(value).name, value)) if value.startswith("/etc/penstock/") else value
            for name, value in found.variables.items()
        }
        return replace(found, variables=variables)

    probes = {
        probe["httpGet"]["path"]
        for name, probe in rendered.container("console").items()
        if name.endswith("Probe") and "httpGet" in probe
    }
    assert probes == {"/login", "/api/v1/health"}
    with running(command("store"), tmp_path / "store.log") as of_store:
        beside = command("console", of_store["ready"])
        with running(beside, tmp_path / "console.log", "console") as of_console:
            base = f"http://127.0.0.1:{of_console['console']}"
            for path in probes:
                assert _status(base + path) == 200
            assert _status(f"{base}/api/v1/server") == 401
            assert _status(f"{base}/api/v1/server", "ann:wrong") == 401
            assert _status(f"{base}/api/v1/server", "ann:first") == 200
            assert _status(f"{base}/api/v1/health", host="plant-penstock-console.messaging.svc") == 200
            assert _status(f"{base}/api/v1/health", host="another.example.com") == 421


def _status(url: str, login: str = "", host: str = "") -> int:
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()} if login else {}
    headers |= {"Host": host} if host else {}
    try:
        with urlopen(Request(url, headers=headers), timeout=10) as answer:
            if "json" in answer.headers["Content-Type"]:
                json.load(answer)
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code
