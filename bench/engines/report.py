"""The measurements as a table, with ratios to the best peer and distances from the machine's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from statistics import median

from bench.common.figures import BUSY, HTTP_SHARE, Limits, Machine, Ratio, best_of, pick, table
from bench.common.plan import Plan, column
from bench.engines.chart import Bar, Group, chart
from bench.engines.engines import Engine, Sample
from bench.engines.limits import Rates, Step, steps
from bench.engines.model import Work

REQUIRED = {"prefill": 1.4, "b1": 1.6, "b8": 2.2, "b32": 1.8}
"""By which factor ours must beat the best peer."""
EXPERTS_REQUIRED = {"b1": 1.5, "b8": 1.5, "b32": 1.5}
"""The same with a model of many experts."""


@dataclass(slots=True)
class Row:
    """What one engine showed.

    Args:
        reason: why there are no (more) samples; empty if all went well.
    """

    name: str
    weights: str
    ours: bool
    http: bool
    version: str = ""
    reason: str = ""
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def of(cls, engine: Engine) -> Row:
        return cls(engine.title, engine.weights, engine.ours, engine.http)

    def figure(self, name: str) -> float | None:
        """Median of a column's samples."""
        values = [sample.value for sample in self.samples if sample.column == name]
        return median(values) if values else None

    def to_json(self) -> dict[str, object]:
        columns = dict.fromkeys(sample.column for sample in self.samples)
        return asdict(self) | {"median": {name: self.figure(name) for name in columns}}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything about one run."""

    plan: Plan
    machine: Machine
    work: Work
    rows: Sequence[Row]
    required: Mapping[str, float]
    stopped: bool = False
    """Before its end: some rounds, or parts of one, are missing."""

    def markdown(self) -> str:
        """The whole report."""
        parts = [self._heading(), self._speeds(), self._ratios(), self._limits(), self._latencies(), self._versions()]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_json(self) -> dict[str, object]:
        return {
            "plan": asdict(self.plan) | {"model": Path(self.plan.model).name},
            "machine": asdict(self.machine) | {"limits": self.limits},
            "work": asdict(self.work),
            "ratios": [asdict(ratio) for ratio in self.ratios()],
            "rows": [row.to_json() for row in self.rows],
        }

    @property
    def columns(self) -> list[str]:
        return [*self.plan.columns, "load"]

    @property
    def limits(self) -> Limits:
        """The best that the machine has shown."""
        return best_of([sample.limits for row in self.rows for sample in row.samples])

    def _heading(self) -> str:
        plan, machine = self.plan, self.machine
        return (
            f"{machine.cpu}, {machine.cores} cores ({machine.flags}); load average before the run "
            f"{', '.join(f'{load:.2f}' for load in machine.load_before)}."
            f"{' **The machine was busy: these figures are rough.**' if machine.load_before[0] > BUSY else ''}"
            f"{' **The run was stopped before its end: not all of its rounds are in these figures.**' if self.stopped else ''}\n\n"
            f"Tokens per second of `{Path(plan.model).name}`, median of {plan.rounds} interleaved rounds, {plan.threads} threads; "
            f"prefill = {plan.prefill}-token prompt, bN = N sequences decoding {plan.steps} greedy steps from a context of {plan.context} "
            f"(over HTTP: N streaming clients, {plan.http_tokens} tokens each); "
            "prefill N = a prompt of N tokens, bN@M = from a context of M; load in seconds (over HTTP: from process start to ready)."
        )

    def _speeds(self) -> str:
        body = [[row.name, row.weights, *(cell(row, name) for name in self.columns)] for row in self.rows]
        failed = [f"- {row.name}, {row.weights}: {row.reason}" for row in self.rows if row.reason]
        return table(["engine", "weights", *self.columns], body) + ("\n\nNot measured:\n" + "\n".join(failed) if failed else "")

    def best_peer(self, name: str, *, http: bool) -> tuple[Row, float] | None:
        """The fastest peer in a column, of those measured in the same way."""
        peers = [(row, figure) for row in self.rows if not row.ours and row.http == http and (figure := row.figure(name))]
        return max(peers, key=lambda peer: peer[1], default=None)

    def ratios(self) -> list[Ratio]:
        """Ours against the best peer, and our HTTP against our core, where both were measured."""
        found: list[Ratio] = []
        core = next((row for row in self.rows if row.ours and not row.http), None)
        for row in (row for row in self.rows if row.ours):
            for name in self.columns[:-1]:
                figure, peer = row.figure(name), self.best_peer(name, http=row.http)
                if figure and peer:
                    needed = None if row.http else self.required.get(name)
                    found.append(Ratio(f"{row.name} / best peer", name, figure / peer[1], needed, f"{peer[0].name}, {peer[0].weights}"))
                if figure and row.http and core and (whole := core.figure(name)):
                    needed = HTTP_SHARE if name != "prefill" else None
                    found.append(Ratio(f"{row.name} / {core.name}", name, figure / whole, needed, core.name))
        return found

    def chart(self) -> str:
        """A picture of the engines without HTTP; empty if none can be compared. Of a peer's weights the fastest count."""
        rows, groups = [row for row in self.rows if not row.http], []
        for name in self.plan.columns:
            best: dict[str, Bar] = {}
            for row in rows:
                value = row.figure(name)
                if value and (row.name not in best or best[row.name].value < value):
                    best[row.name] = Bar(row.name, value, row.ours)
            groups.append(Group(name, list(best.values())))
        machine = self.machine
        return chart(f"{machine.cpu}, {self.plan.threads} threads, {Path(self.plan.model).name}: speed, 1 = the fastest peer", groups)

    def _ratios(self) -> str:
        body = [[ratio.what, ratio.column, f"{ratio.value:.2f}", ratio.needed_text, ratio.verdict, ratio.to] for ratio in self.ratios()]
        return table(["ratio", "column", "is", "required", "", "compared with"], body) if body else ""

    def _limits(self) -> str:
        if reason := self.machine.limits_reason:
            return f"Limits of the machine: not measured ({reason})."
        lines = [f"- {name}: {', '.join(f'{key}: {value}' for key, value in limit.items())}" for name, limit in self.limits.items()]
        if not lines:
            return ""
        title = "Limits of the machine, the best that it has shown, by number of threads (GB/s; 10^9 multiply-adds/s):"
        return "\n".join([title, *lines]) + self._distances()

    def _distances(self) -> str:
        """How far ours is from what the machine allowed at that time: medians of the rounds."""
        core = next((row for row in self.rows if row.ours and not row.http), None)
        if core is None:
            return ""
        body = []
        for step in steps(self.plan, self.work):
            measured = [
                (sample.value, Rates.of(sample.limits, self.plan.threads, step.tokens))
                for sample in core.samples
                if sample.column == step.column
            ]
            if found := [distance(step, value, rates) for value, rates in measured if all(astuple(rates))]:
                *figures, share, whole = map(median, zip(*found, strict=True))
                body.append([step.column, *(f"{figure:.0f}" for figure in figures), f"{share:.0f} %", f"{whole:.0f} %"])
        if not body:
            return ""
        heads = ["tokens/s", core.name, "by reading", "by multiply-adds", "and scaling", "share", "with scaling"]
        note = (
            "What they allow: reading weights, keys and values; multiplying weights in integers and attending in floats; the same, with "
            "the sum of each 32 integers scaled, as the bits are defined (docs/decisions/0002). A share is that of the lesser of two. All "
            "as measured right before and right after each column, the better of both; medians of the rounds:"
        )
        return f"\n\n{note}\n\n{table(heads, body)}"

    def _latencies(self) -> str:
        heads = ["engine", "weights", "clients", "tokens/s, whole", "first p50", "p90", "p99", "gap p50", "p90", "p99", "client CPU s"]
        body = [
            [row.name, row.weights, str(clients), *latency(row, column(clients))]
            for row in self.rows
            for clients in self.plan.clients
            if row.http and row.figure(column(clients))
        ]
        title = "Streaming: time to the first token and gaps between tokens in milliseconds (median of the rounds):"
        return f"{title}\n\n{table(heads, body)}" if body else ""

    def _versions(self) -> str:
        lines = [f"- {row.name}, {row.weights}: {row.version}" for row in self.rows if row.version]
        return "Versions:\n" + "\n".join(lines) if lines else ""


def cell(row: Row, name: str) -> str:
    """A figure of the table, or a dash."""
    figure = row.figure(name)
    return "-" if figure is None else f"{figure:.2f}" if name == "load" else f"{figure:.0f}"


def distance(step: Step, figure: float, rates: Rates) -> list[float]:
    """Tokens per second; what reading, multiplying and, as the bits are defined, scaling as well allow; and percent of the least, with the
    second and with the third."""
    reading, bare = step.by_reading(rates), step.by_multiplying(rates.integers, rates.floats)
    scaled = step.by_multiplying(rates.blocks, rates.floats)
    return [figure, reading, bare, scaled, *(100 * figure / min(reading, most) for most in (bare, scaled))]


def latency(row: Row, name: str) -> list[str]:
    """Cells of the latency table: medians over the rounds of each percentile."""
    details = [sample.detail for sample in row.samples if sample.column == name]

    def middle(*path: str) -> str:
        return f"{median(pick(detail, path) for detail in details):.1f}"

    percentiles = [middle(of, p) for of in ("ttft_ms", "gap_ms") for p in ("p50", "p90", "p99")]
    return [middle("tokens_per_s"), *percentiles, f"{median(pick(detail, ['client_cpu_s']) for detail in details):.2f}"]
