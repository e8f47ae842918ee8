"""The Grafana dashboard asks for nothing that ``/metrics`` has not got; ``tests/e2e/test_observability.py`` asks a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support import dashboard

from scripts import metrics

QUERIES = [query for asked in dashboard.queries("1m").values() for query in asked]


def test_every_metric_of_the_dashboard_is_on_the_page() -> None:
    there = {sample.name for family in text_string_to_metric_families(metrics.scraped()) for sample in family.samples}
    asked = set().union(*map(dashboard.names, [*QUERIES, *dashboard.variables()]))
    assert asked - there == set()
    assert len(asked) > 50


def test_the_page_names_the_metrics_that_the_dashboard_does_not_show() -> None:
    asked = set().union(*map(dashboard.names, QUERIES))
    families = text_string_to_metric_families(metrics.scraped())
    hidden = {
        f"{one.name}_total" if one.type == "counter" else one.name for one in families if not {its.name for its in one.samples} & asked
    }
    told = re.search(r"all of the metrics but (.*?)\. `make", metrics.PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert told is not None
    patterns = re.findall(r"`(.+?)`", told[1])
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in hidden), hidden
    assert all(any(fnmatch(name, pattern) for name in hidden) for pattern in patterns), patterns


def test_every_label_of_the_dashboard_is_on_the_page() -> None:
    page = text_string_to_metric_families(metrics.scraped())
    there = {name for family in page for sample in family.samples for name in sample.labels} | {"job", "instance"}
    asked = set().union(*(re.findall(r"by \(([\w, ]+)\)", query) for query in QUERIES))
    assert {label for labels in asked for label in labels.split(", ")} <= there


def test_every_panel_has_a_place_of_its_own_and_a_title() -> None:
    panels = json.loads(dashboard.FILE.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert panel["title"] and at["x"] + at["w"] <= 24 and not cells & taken
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_every_query_is_one_that_prometheus_reads(tmp_path: Path) -> None:
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(QUERIES)]
    file = tmp_path / "rules.json"  # YAML is a superset
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    run = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(rules)} rules found" in run.stdout + run.stderr
