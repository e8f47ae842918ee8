"""An earlier result against which a new one must not lose: of the same kind of machine, model and settings, column by column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.proc import PeerError, say
from bench.engines.report import Report, Row

LOSS = 0.05
"""Share of a figure below which a loss may be noise."""

LOST = 3
"""Exit code of a run that lost."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """See above.

    Args:
        kind: what must be the same for figures to be compared.
        figures: engine -> column -> tokens per second; of ours alone.
    """

    kind: Mapping[str, object]
    figures: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """From the JSON beside a report.

        Raises:
            PeerError: it is none.
        """
        try:
            result = json.loads(path.read_text())
            rows = {row["name"]: row["median"] for row in result["rows"] if row["ours"]}
            return cls(kind_of(result), {name: {column: float(value) for column, value in row.items()} for name, row in rows.items()})
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise PeerError(f"{path} is not the JSON of a result: {error!r}") from None

    def kept(self, report: Report) -> bool:
        """Whether nothing is slower than it was by more than ``LOSS``; each comparison is said.

        Raises:
            PeerError: the two cannot be compared, or have nothing in common.
        """
        now = kind_of(report.to_json())
        for what, value in self.kind.items():
            if now[what] != value:
                raise PeerError(f"--check: that result is of another {what}: {value}, and this one of {now[what]}")
        compared = [pair for row in report.rows if row.ours for pair in self._pairs(row)]
        if not compared:
            raise PeerError("--check: there is no figure that both results have")
        lost = [f"{name}, {column}: {ratio:.2f}" for name, column, ratio in compared if ratio < 1 - LOSS]
        for name, column, ratio in compared:
            say(f"{name}, {column}: {ratio:.2f} x what it was")
        say(
            f"slower than before: {'; '.join(lost)}"
            if lost
            else f"none of {len(compared)} figures is slower than before by over {LOSS:.0%}"
        )
        return not lost

    def _pairs(self, row: Row) -> list[tuple[str, str, float]]:
        before = self.figures.get(row.name, {})
        now = {column: row.figure(column) for column in before if column != "load"}
        return [(row.name, column, value / before[column]) for column, value in now.items() if value and before[column]]


def kind_of(result: Mapping[str, Any]) -> dict[str, object]:
    """What a result is of."""
    machine, plan = result["machine"], result["plan"]
    return {"CPU": machine["cpu"], "instruction sets": machine["flags"], "model": plan["model"], "number of threads": plan["threads"]}
