"""The Dockerfile and the compose file, as far as they can be checked without Docker."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config.console_settings import ConsoleSettings
from store.version import VERSION
from tests.helm.chart import ROOT, Rendered, pod_of, ports_of
from tests.helm.test_settings_given import compose_services

DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "docker-compose.yml"
WITH_CONSOLE = ROOT / "docker-compose.console.yml"
WITH_REDIS = ROOT / "docker-compose.redis.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _run(*line: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(it) for it in line], capture_output=True, text=True, timeout=60, cwd=ROOT)


def _instructions(stage: int) -> list[tuple[str, str]]:
    """Those of a stage of the Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages = re.split(r"^(?=FROM )", text, flags=re.MULTILINE)[1:]
    lines = [line.partition(" ") for line in stages[stage].splitlines() if line.strip()]
    return [(name, re.sub(r"\s+", " ", rest)) for name, _, rest in lines]


def test_hadolint_finds_nothing() -> None:
    done = _run(Path(sys.executable).parent / "hadolint", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_the_image_runs_as_the_user_that_the_chart_names(minimal: Rendered) -> None:
    user = [rest for name, rest in _instructions(-1) if name == "USER"]
    context = pod_of(minimal.workload("store"))["securityContext"]
    assert user == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    assert context["fsGroup"] == context["runAsGroup"]


def test_the_image_has_no_compiler_and_builds_nothing() -> None:
    assert len([1 for name, _ in _instructions(0) + _instructions(-1) if name == "FROM"]) == 2
    assert any("gcc" in rest for name, rest in _instructions(0) if name == "RUN")
    runs = " ".join(rest for name, rest in _instructions(-1) if name == "RUN")
    assert "apt-get" not in runs
    assert "--no-index" in runs
    assert not [rest for name, rest in _instructions(-1) if name in ("COPY", "ADD")]


def test_the_image_starts_penstock_and_asks_for_its_health(minimal: Rendered) -> None:
    last = dict(_instructions(-1))
    assert last["ENTRYPOINT"] == '["python", "-P", "-m", "penstock.container"]'
    assert importlib.util.find_spec("penstock.container") is not None
    ports = ports_of(minimal.container("store")) | ports_of(minimal.container("gateway"))
    # The chart has stores and gateways apart, without the console of `penstock serve`.
    console = int(ConsoleSettings().listen.rpartition(":")[2].removesuffix("+"))
    assert {int(port) for port in last["EXPOSE"].split()} == {*ports.values(), console}
    assert "/healthz" in last["HEALTHCHECK"]
    address = last["ENV"].removeprefix("PENSTOCK_ADMIN=")
    assert address in last["HEALTHCHECK"]


def test_the_build_gets_what_the_wheel_is_made_of_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    packages = {it.rstrip("*") for it in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    modules = {f"{name}.py" for name in PROJECT["tool"]["setuptools"]["py-modules"]}
    project = PROJECT["project"]
    assert let_in == packages | modules | {"pyproject.toml", "setup.py", project["readme"], *project["license-files"]}
    assert all((ROOT / name).exists() for name in let_in)


@pytest.mark.parametrize("file", [COMPOSE, WITH_CONSOLE, WITH_REDIS])
def test_the_compose_file_is_one(file: Path) -> None:
    done = _run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_has_two_gateways_and_a_store() -> None:
    services = compose_services()
    assert services.keys() == {"store", "gateway-1", "gateway-2"}
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(set(published)) == len(published) == 5
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)
    for service in services.values():
        check_closed(service)
        assert service["image"] == f"penstock:{VERSION}"
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services
            assert how == {"condition": "service_healthy"}
    assert [name for name, service in services.items() if "build" in service] == ["store"]  # once
    volumes = yaml.safe_load(COMPOSE.read_text())["volumes"]
    (mount,) = services["store"]["volumes"]
    volume, _, folder = mount.partition(":")
    assert volume in volumes
    (data,) = (it.removeprefix("--data=") for it in services["store"]["command"] if it.startswith("--data="))
    assert data.startswith(folder + "/")


def check_closed(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["healthcheck"]["test"]


def test_the_second_compose_file_adds_redis_to_each() -> None:
    added, services = compose_services(WITH_REDIS.name), compose_services()
    redis = added.pop("redis")
    check_closed(redis)
    assert "ports" not in redis
    assert added.keys() == services.keys()
    for more in added.values():
        assert more.keys() == {"environment", "depends_on"}
        assert more["depends_on"] == {"redis": {"condition": "service_healthy"}}


def test_the_third_compose_file_adds_a_console_and_users_to_each() -> None:
    added, services = compose_services(WITH_CONSOLE.name), compose_services()
    console = added.pop("console")
    check_closed(console)
    assert console["image"] == f"penstock:{VERSION}"
    assert console["ports"] == ["127.0.0.1:8080:8080"]
    assert added.keys() == services.keys()
    secrets = yaml.safe_load(WITH_CONSOLE.read_text())["secrets"]
    for more in added.values():
        assert more["environment"]["PENSTOCK_AUTH__ALLOW_ANONYMOUS"] == "false"
        assert set(more["secrets"]) == secrets.keys()
        files = [value for name, value in more["environment"].items() if name.endswith("_FILE")]
        assert sorted(files) == sorted(f"/run/secrets/{name}" for name in secrets)


def test_the_compose_file_has_no_secret_and_wants_each() -> None:
    wanted = (
        (COMPOSE, "PENSTOCK_SHARED_TOKEN"),
        (WITH_CONSOLE, "PENSTOCK_CLIENT_TOKEN"),
        (WITH_CONSOLE, "PENSTOCK_OPERATOR_TOKEN"),
        (WITH_REDIS, "PENSTOCK_REDIS_PASSWORD"),
    )
    for file, name in wanted:
        text = file.read_text()
        assert not re.findall(r"\$\{\w+:?-[^}]", text)  # an empty token lets nobody in
        assert re.findall(rf"\$\{{{name}:\?", text)
        assert not re.findall(rf"\$\{{{name}\}}", text)
    assert "REDIS" not in COMPOSE.read_text().upper()
    redis = compose_services(WITH_REDIS.name)["redis"]
    assert redis["command"][-2:] == ["--requirepass", "secret"]
    assert redis["environment"] == {"REDISCLI_AUTH": "secret"}


def test_gateways_are_given_longer_to_stop_than_they_take() -> None:
    for name in ("gateway-1", "gateway-2"):
        assert compose_services()[name]["stop_grace_period"] == "30s"
