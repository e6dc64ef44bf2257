"""The chart as the real helm renders it, with what the tests ask of it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "penstock"
HERE = Path(__file__).parent
VALUES = {path.stem.removeprefix("values-"): path for path in sorted(HERE.glob("values-*.yaml"))}
RELEASE, NAMESPACE = "plant", "messaging"
OLDEST_KUBERNETES = "1.30.0"
"""What Chart.yaml asks for."""

Object = dict[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([_find_helm(), *map(str, arguments)], capture_output=True, text=True, timeout=60)


@cache
def _find_helm() -> str:
    beside = Path(sys.executable).parent / "helm"
    found = str(beside) if beside.is_file() else shutil.which("helm")
    if found is None:
        install = f"tests/helm/install-helm.sh {Path(sys.executable).parent}"
        pytest.fail(f"helm is missing; build it with `{install}`", pytrace=False)
    return found


def template(*arguments: str | Path, release: str = RELEASE) -> subprocess.CompletedProcess[str]:
    """`helm template`; later arguments win over earlier ones."""
    where = ("--namespace", NAMESPACE, "--kube-version", OLDEST_KUBERNETES)
    return helm("template", release, CHART, *where, *arguments)


@cache
def render(*arguments: str | Path, release: str = RELEASE) -> "Rendered":
    """What the chart makes of these arguments."""
    done = template(*arguments, release=release)
    assert done.returncode == 0, done.stderr
    return Rendered(tuple(document for document in yaml.safe_load_all(done.stdout) if document))


def values_of(name: str) -> Object:
    """The values in force with tests/helm/values-NAME.yaml."""
    return _merged(yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load(VALUES[name].read_text()))


def _merged(under: Object, over: Object) -> Object:
    both = under | over
    return both | {
        key: _merged(under[key], over[key])
        for key in under.keys() & over.keys()
        if isinstance(under[key], dict) and isinstance(over[key], dict)
    }


@dataclass(frozen=True)
class Rendered:
    objects: tuple[Object, ...]

    def of_kind(self, kind: str) -> list[Object]:
        return [thing for thing in self.objects if thing["kind"] == kind]

    def one(self, kind: str, component: str = "") -> Object:
        """The only one of this kind; of this component, if one is named."""
        found = [thing for thing in self.of_kind(kind) if component in ("", component_of(thing))]
        assert len(found) == 1, f"{len(found)} of {kind} {component}"
        return found[0]

    @property
    def workloads(self) -> list[Object]:
        return [*self.of_kind("Deployment"), *self.of_kind("StatefulSet")]

    def workload(self, component: str) -> Object:
        return next(workload for workload in self.workloads if component_of(workload) == component)

    def container(self, component: str) -> Object:
        containers: list[Object] = pod_of(self.workload(component))["containers"]
        assert len(containers) == 1
        return containers[0]

    def selected(self, labels: Mapping[str, str]) -> list[Object]:
        """The workloads whose pods a selector with these labels finds."""
        return [workload for workload in self.workloads if labels.items() <= pod_labels(workload).items()]


def component_of(thing: Object) -> str | None:
    component: str | None = thing["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return component


def pod_of(workload: Object) -> Object:
    pod: Object = workload["spec"]["template"]["spec"]
    return pod


def pod_labels(workload: Object) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def ports_of(container: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def variables_of(container: Object) -> dict[str, Object]:
    """The environment: what each variable is given by."""
    variables = {variable["name"]: variable for variable in container.get("env", [])}
    assert len(variables) == len(container.get("env", [])), "one is given twice"
    return variables


def strings_in(thing: object) -> Iterator[str]:
    """Every text in an object, however deep."""
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from strings_in(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from strings_in(value)


def quantity(text: str | float) -> float:
    """What a Kubernetes quantity stands for."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?", str(text))
    assert match is not None, text
    powers = {"m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(match[1]) * powers.get(match[2], 1)
