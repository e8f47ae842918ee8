"""The manifest of docs/scale.md: its pods held to Kubernetes' own schema. KubeRay's is not here."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

from tests.packaging.tools import ROOT, packaging_python

PODS = """
import json, sys
import kubernetes_validate, yaml
spec = yaml.safe_load(sys.stdin.read())["spec"]
pods = [one["template"]["spec"] for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
for one in pods:
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": one}, "1.30", strict=True)
print(json.dumps(pods))
"""


def pods() -> list[dict[str, Any]]:
    """Of the head, and of a machine with replicas."""
    manifest = re.search(r"```yaml\n(apiVersion: ray.io.*?)```", (ROOT / "docs/scale.md").read_text(), re.DOTALL)
    assert manifest is not None
    done = subprocess.run([packaging_python(), "-c", PODS], input=manifest[1], capture_output=True, text=True, check=True)
    made: list[dict[str, Any]] = json.loads(done.stdout)
    return made


def test_the_front_has_time_to_fetch_its_models_and_to_drain_and_keeps_what_it_fetched() -> None:
    head, worker = pods()
    (front,) = (one for one in head["containers"] if one["name"] == "quintet")
    assert front["command"][0] == "quintet", "a shell would be process 1, and drop SIGTERM"
    assert head["terminationGracePeriodSeconds"] > 30, "--drain-timeout"
    assert front["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert front["startupProbe"]["periodSeconds"] * front["startupProbe"]["failureThreshold"] >= 600
    for pod, container in ((head, front), (worker, worker["containers"][0])):
        folders = {one["name"]: one["value"] for one in container["env"] if one["name"] in ("QUINTET_CACHE", "HF_HOME")}
        (mounted,) = (one["mountPath"] for one in container["volumeMounts"] if one["name"] == "models")
        assert len(folders) == 2
        assert all(folder.startswith(mounted) for folder in folders.values())
        assert any(one["name"] == "models" for one in pod["volumes"])
