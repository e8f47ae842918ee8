"""Tests of the real Ray, for ``make test-ray``, which makes their environment. Without Ray they are not collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from tests.ray.cluster import Cluster, cluster

collect_ignore_glob = [] if importlib.util.find_spec("ray") else ["test_*.py"]

TWO = ("smollm2", "--replicas", "2", "--dialect", "auto")


@pytest.fixture(scope="session")
def two() -> Iterator[Cluster]:
    """Two replicas of the bundled model, on a Ray of their own."""
    with cluster(*TWO) as started:
        yield started
