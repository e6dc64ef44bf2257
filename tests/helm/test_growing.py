"""A larger `store.persistence.size` for a release that there is: Kubernetes refuses another claim template.

Helm asks a stand-in for the API server, which knows the kinds of the chart and a StatefulSet of an earlier install.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, NAMESPACE, RELEASE, VALUES, helm

KINDS = {
    "v1": ("Secret", "Service", "ServiceAccount", "ConfigMap"),
    "apps/v1": ("StatefulSet", "Deployment"),
    "policy/v1": ("PodDisruptionBudget",),
    "networking.k8s.io/v1": ("NetworkPolicy", "Ingress"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
}
PLURALS = {kind: f"{kind.lower()}s" for kinds in KINDS.values() for kind in kinds} | {
    "NetworkPolicy": "networkpolicies",
    "Ingress": "ingresses",
}
CLAIM = {"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "20Gi"}}}}
OWNED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE},
}
STORE = f"{RELEASE}-penstock-store"
PATCH = f"patch pvc data-{STORE}-0 --patch '" + '{"spec":{"resources":{"requests":{"storage":"40Gi"}}}}' + "'"


def _resources(version: str) -> dict[str, Any]:
    verbs = ["get", "list", "create", "update", "patch", "delete"]
    found = [{"name": PLURALS[kind], "namespaced": True, "kind": kind, "verbs": verbs} for kind in KINDS[version]]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


def _groups() -> dict[str, Any]:
    groups = []
    for version in KINDS:
        group, _, number = version.partition("/")
        if number:
            named = {"groupVersion": version, "version": number}
            groups.append({"name": group, "versions": [named], "preferredVersion": named})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _answers(claims: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What there is, by path: the API itself, and a StatefulSet with these claim templates."""
    store = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": STORE, "namespace": NAMESPACE} | OWNED,
        "spec": {"volumeClaimTemplates": claims} if claims else {},
    }
    api = {f"/api{'s' if '/' in version else ''}/{version}": _resources(version) for version in KINDS}
    return api | {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": _groups(),
        f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{STORE}": store,
    }


class _Cluster(BaseHTTPRequestHandler):
    answers: dict[str, dict[str, Any]]

    def do_GET(self) -> None:
        found = self.answers.get(self.path.partition("?")[0])
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        body = json.dumps(found or missing).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A configuration for Helm that names a server which has these claim templates."""
    handler = type("Cluster", (_Cluster,), {"answers": _answers(request.param)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    named = {"name": "it", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "it", "context": {"cluster": "it", "user": ""}}
    file = tmp_path / "kubeconfig"
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [named], "contexts": [context], "current-context": "it"}
    file.write_text(yaml.safe_dump(config))
    yield file
    server.shutdown()
    server.server_close()
    thread.join()


def _said(cluster: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What Helm would install beside what the cluster has, and the notes."""
    line = ("install", RELEASE, CHART, "--namespace", NAMESPACE, "--dry-run=server", "--disable-openapi-validation")
    return helm(*line, "--kubeconfig", cluster, "--values", VALUES["minimal"], *options)


def _template_size(said: str) -> object:
    manifest = said.partition("MANIFEST:\n")[2].partition("\nNOTES:")[0]
    documents = [it for it in yaml.safe_load_all(manifest) if it]
    (store,) = (it for it in documents if it["kind"] == "StatefulSet")
    (claim,) = store["spec"]["volumeClaimTemplates"]
    return claim["spec"]["resources"]["requests"]["storage"]


@pytest.mark.parametrize("cluster", [[CLAIM]], indirect=True)
def test_a_larger_size_leaves_the_template_and_names_the_patch(cluster: Path) -> None:
    done = _said(cluster, "--set", "store.persistence.size=40Gi")
    assert done.returncode == 0, done.stderr
    assert _template_size(done.stdout) == "20Gi"
    assert PATCH in done.stdout


@pytest.mark.parametrize("cluster", [[CLAIM]], indirect=True)
def test_the_size_that_the_claim_was_made_with_needs_no_patch(cluster: Path) -> None:
    done = _said(cluster, "--set", "store.persistence.size=20Gi")
    assert _template_size(done.stdout) == "20Gi"
    assert "patch pvc" not in done.stdout


@pytest.mark.parametrize("cluster", [[]], indirect=True)
def test_a_claim_that_is_given_has_no_size_to_patch(cluster: Path) -> None:
    options = ("--set", "store.persistence.size=40Gi", "--set", f"store.persistence.existingClaim=data-{STORE}-0")
    done = _said(cluster, *options)
    assert done.returncode == 0, done.stderr
    assert "volumeClaimTemplates" not in done.stdout
    assert "patch pvc" not in done.stdout
