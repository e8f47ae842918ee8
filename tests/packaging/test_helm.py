"""The chart of packaging/helm: linted and rendered by Helm's own library, each object held to Kubernetes' own schema."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from tests.packaging.tools import PACKAGING, packaging_python

from quintet.cli.net import answered_hosts
from quintet.errors import WrongHost
from quintet.server.asgi import Headers
from quintet.server.hosts import Hosts

CHART = PACKAGING / "helm/quintet"
RENDER = """
import json, sys
import kubernetes_validate, yaml
from helm_python import chart
path, values = sys.argv[1], json.loads(sys.argv[2])
found = chart.lint(path, values, strict=True)
if found["errors"] or any(one["severity"] > 1 for one in found["messages"]):
    sys.exit(f"lint: {found}")
rendered = chart.Chart.load(path).render(values, name="demo", namespace="team")
objects = [one for name, text in rendered.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text) if one]
for one in objects:
    kubernetes_validate.validate(one, "1.30", strict=True)
print(json.dumps(objects))
"""


def render(**values: object) -> dict[str, Any]:
    """The objects of a release, by kind."""
    command = [packaging_python(), "-c", RENDER, str(CHART), json.dumps(values)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    return {one["kind"]: one for one in json.loads(done.stdout)}


def test_what_is_made_by_default_is_what_the_page_says() -> None:
    made = render()
    assert sorted(made) == ["Deployment", "PersistentVolumeClaim", "PodDisruptionBudget", "Service", "ServiceAccount"]
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    assert pod["terminationGracePeriodSeconds"] == 35
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not pod["automountServiceAccountToken"]
    assert container["args"][:5] == ["serve", "smollm2", "--host=0.0.0.0", "--port=8000", "--no-api-key"]
    selector = made["Service"]["spec"]["selector"]
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert (
        made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == selector == made["Deployment"]["spec"]["selector"]["matchLabels"]
    )
    volume = next(one for one in pod["volumes"] if one["name"] == "models")
    assert volume["persistentVolumeClaim"]["claimName"] == made["PersistentVolumeClaim"]["metadata"]["name"]


def test_values_reach_what_they_are_for() -> None:
    made = render(
        models=["a=hf:user/repo"],
        arguments=["--lazy"],
        keys={"secret": "mine", "file": "k.txt"},
        persistence={"enabled": False},
        podDisruptionBudget={"enabled": False},
        serviceAccount={"name": "there"},
        nodeSelector={"disk": "fast"},
        env=[{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
    )
    assert sorted(made) == ["Deployment", "Service"]
    pod = made["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == [
        "serve",
        "a=hf:user/repo",
        "--host=0.0.0.0",
        "--port=8000",
        "--api-key-file=/etc/quintet/k.txt",
        "--lazy",
    ]
    assert (pod["serviceAccountName"], pod["nodeSelector"]) == ("there", {"disk": "fast"})
    assert {"name": "models", "emptyDir": {}} in pod["volumes"]


def args_of(**values: object) -> list[str]:
    args: list[str] = render(**values)["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


def test_without_keys_the_names_of_its_service_are_answered_to() -> None:
    made = render()
    name, args = made["Service"]["metadata"]["name"], made["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    allowed = tuple(arg.removeprefix("--allowed-host=") for arg in args if arg.startswith("--allowed-host="))
    hosts = Hosts(answered_hosts(["0.0.0.0"], allowed, keyless=True))
    for host in (name, f"{name}.team", f"{name}.team:80", f"{name}.team.svc", f"{name}.team.svc.cluster.local"):
        hosts.require(Headers([(b"host", host.encode())]))
    with pytest.raises(WrongHost):
        hosts.require(Headers([(b"host", b"elsewhere.example")]))


@pytest.mark.parametrize(
    "values",
    [
        {"arguments": ["--keys=/models/keys.db"]},
        {"arguments": ["--keys", "/models/keys.db"]},
        {"env": [{"name": "QUINTET_API_KEY", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "key"}}}]},
    ],
)
def test_keys_that_are_in_no_secret_are_asked_for(values: dict[str, object]) -> None:
    assert not [arg for arg in args_of(**values) if arg.startswith(("--no-api-key", "--allowed-host"))]


def test_names_of_the_environment_are_not_replaced() -> None:
    args = args_of(env=[{"name": "QUINTET_ALLOWED_HOST", "value": "llm.example.org"}])
    assert [arg for arg in args if arg.startswith(("--no-api-key", "--allowed-host"))] == ["--no-api-key"]


def test_a_pod_that_keeps_batches_ends_before_the_next_one_starts() -> None:
    """Which would find the folder of batches in use, and go on with none of them."""
    for replicas, mode, ends in ((1, "ReadWriteOnce", True), (1, "ReadWriteMany", True), (2, "ReadWriteMany", False)):
        spec = render(replicas=replicas, persistence={"enabled": True, "accessMode": mode})["Deployment"]["spec"]
        assert (spec.get("strategy") == {"type": "Recreate"}) is ends


def test_pods_that_stand_behind_one_service_keep_no_batches() -> None:
    made = [render(replicas=replicas)["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"] for replicas in (1, 2)]
    assert ["--no-batches" in args for args in made] == [False, True]


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"models": []},
        {"arguments": ["--api-key"]},
        {"arguments": ["--lazy", "--api-key=secret"]},
        {"arguments": ["--port=9000"]},
        {"persistence": {"size": "much"}},
        {"service": {"port": 0}},
    ],
)
def test_values_that_mean_nothing_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"schema|values|[Aa]dditional|must|lint"):
        render(**values)
