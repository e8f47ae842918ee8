"""The serving scenarios as tables, with what must be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench.common.figures import BUSY, Machine, Ratio, table
from bench.serving.scenarios import Scenario, Shown, Sizes, Table


@dataclass
class Part:
    """One scenario's part of the report.

    Args:
        reasons: why an engine has no (more) figures, by its key.
    """

    scenario: Scenario
    shown: list[Shown] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    def figures(self) -> Table:
        """Medians over the rounds."""
        rounds: dict[tuple[str, str], list[Mapping[str, float]]] = {}
        for one in self.shown:
            if one.figures:
                rounds.setdefault((one.engine, one.variant), []).append(one.figures)
        return {key: {name: median(each[name] for each in found if name in each) for name in found[0]} for key, found in rounds.items()}

    def ratios(self) -> list[Ratio]:
        return list(self.scenario.ratios(self.figures()))

    def markdown(self) -> str:
        notes = [f"- {one.engine}{f', {one.variant}' if one.variant else ''}: {one.note}" for one in self.shown if one.note]
        notes += [f"- {engine}: {reason}" for engine, reason in self.reasons.items()]
        title = f"## {self.scenario.key}\n\n{self.scenario.title}."
        parts = [title, self._figures(), verdicts(self.ratios()), "\n".join(dict.fromkeys(notes))]
        return "\n\n".join(part for part in parts if part)

    def _figures(self) -> str:
        figures = self.figures()
        return "\n\n".join(rows(figures, block) for block in self.scenario.blocks) if figures else ""

    def to_json(self) -> dict[str, object]:
        return {
            "scenario": self.scenario.key,
            "shown": [asdict(one) for one in self.shown],
            "medians": [{"engine": engine, "variant": variant, **found} for (engine, variant), found in self.figures().items()],
            "ratios": [asdict(ratio) | {"verdict": ratio.verdict} for ratio in self.ratios()],
            "reasons": self.reasons,
        }


def rows(figures: Table, columns: Sequence[str]) -> str:
    """A table with a row for every engine that has one of these figures."""
    body = [
        [engine, variant, *(number(found.get(name)) for name in columns)]
        for (engine, variant), found in figures.items()
        if any(name in found for name in columns)
    ]
    return table(["engine", "", *columns], body)


def number(value: float | None) -> str:
    """Three digits that matter."""
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def verdicts(ratios: Sequence[Ratio]) -> str:
    body = [[one.what, one.column, f"{one.value:.3g}", one.needed_text, one.verdict, one.to] for one in ratios]
    return table(["", "column", "is", "required", "", "compared with"], body) if body else ""


@dataclass(frozen=True)
class ServeReport:
    """Everything about one run.

    Args:
        model: file name.
        labels: what each engine is, with its version, by its key.
    """

    model: str
    threads: int
    sizes: Sizes
    machine: Machine
    labels: Mapping[str, str]
    parts: Sequence[Part]

    def markdown(self) -> str:
        engines = "\n".join(f"- {key}: {label}" for key, label in self.labels.items())
        return "\n\n".join([self._heading(), self._summary(), *(part.markdown() for part in self.parts), f"Engines:\n{engines}"]) + "\n"

    def to_json(self) -> dict[str, object]:
        return {
            "model": Path(self.model).name,
            "threads": self.threads,
            "sizes": asdict(self.sizes),
            "machine": asdict(self.machine),
            "engines": dict(self.labels),
            "parts": [part.to_json() for part in self.parts],
        }

    def _heading(self) -> str:
        machine = self.machine
        busy = " **The machine was busy: these figures are rough.**" if machine.load_before[0] > BUSY else ""
        load = ", ".join(f"{load:.2f}" for load in machine.load_before)
        facts = f"{machine.cores} cores ({machine.flags}), {self.threads} threads, {Path(self.model).name}"
        return f"# Serving, {machine.cpu}\n\n{facts}; load average before the run {load}.{busy}"

    def _summary(self) -> str:
        """What is required, in one table."""
        wanted = [(part, ratio) for part in self.parts for ratio in part.ratios() if ratio.needed is not None]
        body = [[part.scenario.key, one.what, one.column, f"{one.value:.3g}", one.needed_text, one.verdict] for part, one in wanted]
        return table(["scenario", "what", "column", "is", "required", ""], body) if body else ""
