"""The dashboard of the repository, as Prometheus sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

FILE = Path(__file__).parents[2] / "packaging/grafana/quintet.json"

_METRIC = re.compile(r"\b((?:vllm|quintet):\w+|(?:http|process)_\w+)")


def queries(interval: str) -> dict[str, list[str]]:
    """The queries of each panel by its title, for every job, instance and model.

    Args:
        interval: what rates are taken over, such as ``30s``.
    """
    found: dict[str, list[str]] = {}
    for panel in json.loads(FILE.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] != "row":
            found.setdefault(f"{panel['id']} {panel['title']}", []).extend(
                re.sub(r"\$(?:job|instance|model)\b", ".*", target["expr"].replace("$__rate_interval", interval))
                for target in panel["targets"]
            )
    return found


def variables() -> list[str]:
    """The queries of the variables: a metric each."""
    listed = json.loads(FILE.read_text(encoding="utf-8"))["templating"]["list"]
    return [one["query"] for one in listed if one["type"] == "query"]


def names(query: str) -> set[str]:
    """The series that a query asks for."""
    return set(_METRIC.findall(query))
