"""The programs accept all that charts and compose files give them: names, values, addresses, probes."""

import base64
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from penstock.config.settings_tree import SETTINGS
from tests.helm.chart import ROOT, VALUES, Object, Rendered, pod_of, render, variables_of
from tests.support.mqtt_packet_client import write_secret

NAMES = {name for setting in SETTINGS.values() for name in setting.environment_names}
START_TIMEOUT_S = 30


@dataclass(frozen=True)
class Command:
    """What a container runs."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        return {**inherited, **self.variables}

    @property
    def line(self) -> list[str]:
        return [sys.executable, "-m", "penstock", *self.arguments]

    def settings(self) -> dict[str, Any]:
        """Those in force, as the program itself tells."""
        line = [*self.line, "--print-config"]
        done = subprocess.run(line, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return tomllib.loads(done.stdout)

    def here(self, token_file: Path, data: Path, store_port: int = 0) -> "Command":
        """The same on any free ports and with its files elsewhere."""
        replaced = [re.sub(r"(//|=)0\.0\.0\.0:\d+$", r"\g<1>0.0.0.0:0", it) for it in self.arguments]
        replaced = [re.sub(r"^--store=tcp://\S+$", f"--store=tcp://127.0.0.1:{store_port}", it) for it in replaced]
        replaced = [f"--data={data}" if it.startswith("--data=") else it for it in replaced]
        variables = {**self.variables}
        for name in ("PENSTOCK_WIRE__GATEWAY_TOKEN_FILE", "PENSTOCK_GATEWAY__STORE_TOKEN_FILE"):
            if name in variables:
                variables[name] = str(token_file)
        return Command(tuple(replaced), variables)


def command_of(container: Object) -> Command:
    """A container of the chart, with `secret` for whatever a Secret holds; what has to be a URL looks like one."""
    held = {name: "redis://secret" if name.endswith("_URL") else "secret" for name in variables_of(container)}
    variables = {name: it.get("value", held[name]) for name, it in variables_of(container).items()}
    return Command(tuple(container["args"]), variables)


def compose_services(file: str = "docker-compose.yml") -> dict[str, Object]:
    text = re.sub(r"\$\{\w+:-\}", '""', (ROOT / file).read_text())
    services: dict[str, Object] = yaml.safe_load(re.sub(r"\$\{\w+:\?[^}]*\}", "secret", text))["services"]
    return services


def compose_command(name: str, more: Object | None = None) -> Command:
    """`more`: what a second file adds to the service."""
    service = compose_services()[name]
    return Command(tuple(service["command"]), service["environment"] | (more or {}).get("environment", {}))


def test_variables_of_the_chart_are_settings(rendered: Rendered) -> None:
    for workload in rendered.workloads:
        for container in pod_of(workload)["containers"]:
            given = {name for name in variables_of(container) if name.startswith("PENSTOCK_")}
            assert given <= NAMES


def test_variables_of_the_compose_file_are_settings() -> None:
    for name in ("store", "gateway-1", "gateway-2"):
        assert set(compose_command(name).variables) <= NAMES
    text = (ROOT / "docker-compose.console.yml").read_text()
    assert set(re.findall(r"^ *(?:# )?(PENSTOCK_\w+): ", text, re.MULTILINE)) <= NAMES


def test_the_programs_understand_what_the_compose_file_with_a_console_gives() -> None:
    services = compose_services("docker-compose.console.yml")
    console = services["console"]
    commands = {name: compose_command(name, services[name]) for name in ("store", "gateway-1", "gateway-2")}
    commands["console"] = Command(tuple(console["command"]), console["environment"])
    for name, command in commands.items():
        settings = command.settings()
        if name == "console":
            assert settings["console"]["listen"] == "0.0.0.0:8080"
        else:
            assert settings["auth"]["password_file"] == "/run/secrets/passwords"
            assert settings["auth"]["allow_anonymous"] is False


def test_the_programs_understand_what_the_chart_gives(rendered: Rendered) -> None:
    for component in ("store", "gateway"):
        settings = command_of(rendered.container(component)).settings()
        assert settings["admin"] == "0.0.0.0:9464"


def test_settings_of_the_operator_arrive(everything: Rendered) -> None:
    store = command_of(everything.container("store")).settings()
    gateway = command_of(everything.container("gateway")).settings()
    assert (store["log_level"], gateway["log_level"]) == ("warning", "warning")
    assert store["store"]["flush"] == "async"
    assert store["store"]["retention_bytes"] == 17_179_869_184
    assert store["store"]["live_only"] == ["telemetry/#", "debug/+/raw"]
    assert store["wire"]["lease_ms"] == 3_000
    assert gateway["gateway"]["max_connections"] == 1_000_000
    assert gateway["gateway"]["queue_qos0"] is True
    assert gateway["gateway"]["drain_timeout_s"] == 45
    # A change to one side does not restart the other.
    assert not [name for name in command_of(everything.container("store")).variables if "GATEWAY__" in name]
    assert "PENSTOCK_STORE__FLUSH" not in command_of(everything.container("gateway")).variables


def test_tokens_certificates_lists_and_proxies_arrive() -> None:
    rendered = render("--values", VALUES["doors"])
    store, gateway = (command_of(rendered.container(component)) for component in ("store", "gateway"))
    wire, of_gateway = store.settings()["wire"], gateway.settings()
    assert [wire[f"{role}_token_file"] for role in ("gateway", "client", "operator")] == [
        f"/etc/penstock/token/{name}" for name in ("token", "client-token", "operator-token")
    ]
    assert "token_file" not in wire
    assert (wire["tls_client_certificates"], wire["tls_roles"]) == ("optional", ["gateway=gateway.example.com"])
    assert of_gateway["gateway"]["store_certificate"] == "/etc/penstock/own/tls.crt"
    assert of_gateway["gateway"]["tls_client_crl_file"] == "/etc/penstock/crl/crl.pem"
    assert of_gateway["gateway"]["proxies"] == ["10.0.0.0/8", "fd00::/8"]
    assert of_gateway["gateway"]["listen"] == [
        "mqtts://0.0.0.0:8883?proxy_protocol=2",
        "mqtts://0.0.0.0:8884?proxy_protocol=2&namespace=acme",
        "wss://0.0.0.0:8885?proxy_protocol=2&namespace=beta",
    ]
    assert wire["namespace_tokens_file"] == "/etc/penstock/token/namespace-tokens"
    secret = next(it for it in rendered.of_kind("Secret") if "namespace-tokens" in it["data"])
    lines = base64.b64decode(secret["data"]["namespace-tokens"]).decode()
    assert lines == "acme what-clients-of-acme-show\nbeta what-clients-of-beta-show\n"
    assert of_gateway["gateway"]["max_connections_per_address"] == 200
    assert of_gateway["auth"]["ban_failures"] == 50
    assert of_gateway["quota"]["user_connections"] == 2
    assert (of_gateway["gateway"]["max_namespaces"], of_gateway["gateway"]["tls_namespace"]) == (20, "o")
    for settings in (
        store.settings(),
        of_gateway,
    ):  # the store counts for all gateways; both know whose namespace it is
        given = ("user_groups", "user_sessions", "user_subscriptions", "user_topics", "user_delayed", "user_retained")
        assert [settings["quota"][name] for name in given] == [20, 3, 50, 100, 10, 100]
        assert settings["quota"]["user_retained_bytes"] == 1_000_000
        of_namespace = [settings["quota"][f"namespace_{name}"] for name in ("sessions", "topics", "messages_per_s")]
        assert of_namespace == [1_000, 5_000, 2_000]
        assert (settings["auth"]["namespace_separator"], settings["auth"]["jwt_namespace_claim"]) == ("/", "tenant")
    mounted = [
        item["key"]
        for it in pod_of(rendered.workload("gateway"))["volumes"]
        for item in it.get("secret", {}).get("items", [])
        if it["name"] == "token"
    ]
    assert mounted == ["token"]  # those of other roles are not the gateways'


def test_no_role_is_let_in_that_was_not_asked_for(minimal: Rendered) -> None:
    given = command_of(minimal.container("store")).variables
    assert {name for name in given if "TOKEN" in name} == {"PENSTOCK_WIRE__GATEWAY_TOKEN_FILE"}
    compose = compose_command("store").variables
    assert compose["PENSTOCK_WIRE__GATEWAY_TOKEN"] == "secret"
    assert not compose["PENSTOCK_WIRE__CLIENT_TOKEN"]
    assert not compose["PENSTOCK_WIRE__OPERATOR_TOKEN"]
    assert "PENSTOCK_WIRE__TOKEN" not in compose


def test_redis_is_given_to_the_programs() -> None:
    (variable,) = SETTINGS["notify.redis_url"].environment_names
    for name, value in {
        "everything": "redis://secret",
        "external-redis": "redis://secret",
        "no-autoscaling": "redis://redis.example.com:6379/3",
    }.items():
        rendered = render("--values", VALUES[name])
        for component in ("gateway", "store"):
            assert command_of(rendered.container(component)).variables[variable] == value
    with_redis = compose_services("docker-compose.redis.yml")
    for service in ("gateway-1", "gateway-2", "store"):
        command = compose_command(service, with_redis[service])
        assert command.variables[variable] == "redis://:secret@redis:6379/0"
        assert set(command.variables) <= NAMES
        assert variable not in compose_command(service).variables  # compose alone starts no Redis


@contextmanager
def running(command: Command, log: Path, last: str = "ready") -> Iterator[dict[str, int]]:
    """The program, until the block ends; the ports that it said it has, of `admin` and the `last` one."""
    with log.open("w") as out:
        process = subprocess.Popen(command.line, env=command.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=out)
    assert process.stdout is not None
    too_late = Timer(START_TIMEOUT_S, process.kill)
    too_late.start()
    try:
        ports = {}
        while last not in ports:
            line = process.stdout.readline().decode()
            match = re.search(rf"\b(admin|{last}) \w+://0\.0\.0\.0:(\d+)", line)
            assert match is not None, line + log.read_text()
            ports[match[1]] = int(match[2])
        too_late.cancel()
        yield ports
        process.terminate()
        assert process.wait(START_TIMEOUT_S) == 0, log.read_text()
    finally:
        too_late.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def _chart_commands() -> tuple[Command, Command]:
    rendered = render("--values", VALUES["minimal"])
    return command_of(rendered.container("store")), command_of(rendered.container("gateway"))


def _compose_commands() -> tuple[Command, Command]:
    return compose_command("store"), compose_command("gateway-2")


@pytest.mark.parametrize("commands", [_chart_commands, _compose_commands], ids=["chart", "compose"])
def test_store_and_gateway_start_as_they_are_told_and_answer_the_probes(commands: Any, tmp_path: Path) -> None:
    """On free ports, but with the very flags, variables and probes; the gateway is let in with the token."""
    token_file = write_secret(tmp_path / "token", "secret\n")
    store, gateway = commands()
    with (
        running(store.here(token_file, tmp_path / "data"), tmp_path / "store.log") as of_store,
        running(gateway.here(token_file, tmp_path, of_store["ready"]), tmp_path / "gateway.log") as of_gateway,
    ):
        for ports in (of_store, of_gateway):
            for page in ("healthz", "readyz", "metrics"):
                with urlopen(f"http://127.0.0.1:{ports['admin']}/{page}", timeout=10) as answer:
                    assert answer.status == 200
