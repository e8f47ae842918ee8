"""The dashboard of the repository, as Prometheus sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

FILE = Path(__file__).parents[2] / "packaging/grafana/quintet.json"

_METRIC = re.compile(r"\b((?:vllm|quintet):\w+|(?:http|process)_\w+)")


def queries(interval: str, file: Path = FILE, model: str = ".*") -> dict[str, list[str]]:
    """The queries of each panel by its title, for every job and instance.

    Args:
        interval: what rates are taken over, such as ``30s``.
        model: the model's name, or a pattern of names where the dashboard takes patterns.
    """
    found: dict[str, list[str]] = {}
    panels = json.loads(file.read_text(encoding="utf-8"))["panels"]
    while panels:
        panel = panels.pop(0)
        panels += panel.get("panels", [])  # of a row that is folded
        if targets := panel.get("targets"):
            found[f"{panel['id']} {panel['title']}"] = [_asked(target["expr"], interval, model) for target in targets]
    return found


def _asked(query: str, interval: str, model: str) -> str:
    """A query with the values of its variables; the names of the model are ours and vLLM's."""
    for pattern, value in ((r"\$__\w+", interval), (r"\$(?:model|model_name|Deployment_id)\b", model), (r"\$(?:job|instance)\b", ".*")):
        query = re.sub(pattern, value, query)
    return query


def variables() -> list[str]:
    """The queries of the variables: a metric each."""
    listed = json.loads(FILE.read_text(encoding="utf-8"))["templating"]["list"]
    return [one["query"] for one in listed if one["type"] == "query"]


def names(query: str) -> set[str]:
    """The series that a query asks for."""
    return set(_METRIC.findall(query))
