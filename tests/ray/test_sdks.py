"""The providers' own SDKs, in strict mode, over two replicas of a text model and two of one that sees images."""

from __future__ import annotations

from pathlib import Path

from tests.clients.__main__ import LEAST, strict
from tests.ray.cluster import cluster
from tests.reference.seeing_folder import write_seeing


def test_the_sdks_strict_suite_passes_over_replicas(tmp_path: Path) -> None:
    seeing = f"seeing={write_seeing(tmp_path)}"
    with cluster("toy=smollm2", seeing, "--replicas", "2", "--image-longest-edge", "120", models=2) as server:
        done = strict(server.url, server.url)
    assert done.failed == 0
    assert done.passed >= LEAST
