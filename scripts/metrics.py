"""Writes the table of metrics in docs/observability.md, from what ``/metrics`` says of itself; a test holds them equal.

python -m scripts.metrics
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from prometheus_client.parser import text_string_to_metric_families

from quintet.backends.base import Health, State
from quintet.guides.check import Checked
from quintet.ledger.ledger import Ledger
from quintet.ledger.stats import Stats
from quintet.server.metrics import Telemetry

PAGE = Path(__file__).parents[1] / "docs/observability.md"
BEGIN, END = "<!-- make metrics -->\n", "<!-- end -->\n"


def scraped() -> str:
    """The page of a server that has everything that is counted: a ledger, a moderation model, an engine's process."""
    ledger = cast(Ledger, SimpleNamespace(stats=Stats(), spooled=0))
    telemetry = Telemetry(["model"], lambda: 0.0, ledger, ["model"], Checked())
    telemetry.answered("GET", "/health", 200, 0.0)
    return telemetry.scrape({"model": Health(State.READY, pid=os.getpid())}).decode()


def table(page: str) -> str:
    """What a page of metrics says of itself, as a table in Markdown."""
    rows = []
    for family in text_string_to_metric_families(page):
        labels = {name: None for sample in family.samples for name in sample.labels if name != "le"}
        assert labels or family.samples, family.name
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |")
    return "\n".join(["| metric | type | labels | what it tells |", "|---|---|---|---|", *sorted(rows)]) + "\n"


def written(text: str) -> str:
    """The page with the table as it must be."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table(scraped())}{END}{rest.partition(END)[2]}"


def main() -> int:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
