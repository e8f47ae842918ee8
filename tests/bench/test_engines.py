"""The comparison of engines: its stages fit a model, a worker measures each in its room, losses and crashes are told, the chart is one."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from tests.reference.tiny_model import FAMILIES, write_tiny

from bench.common import plan as plans
from bench.common.command import write
from bench.common.figures import Limits, Machine
from bench.common.install import Store
from bench.common.plan import MARK, Between, Plan, Stage
from bench.common.proc import PeerError
from bench.engines import run
from bench.engines.baseline import Baseline
from bench.engines.engines import Ours, Sample, Worker
from bench.engines.model import work
from bench.engines.report import REQUIRED, Report, Row
from bench.engines.rows import engines
from quintet.config import KvType

MACHINE = Machine("A CPU", "avx2", 2, (0.0, 0.0, 0.0))
PLAN = Plan("model.gguf", 2, deep=1500, long=8000)


def report(tmp_path: Path, plan: Plan = PLAN, **speed: float) -> Report:
    """Of two engines; ours takes its figures of ``speed``, where ``_at_`` is ``@``."""
    ours, peer = Row("Quintet, core", "as in the file", True, False), Row("A <peer>", "Q4_0", False, False)
    for name in plan.columns:
        ours.samples.append(Sample(name, speed.get(name.replace("@", "_at_").replace(" ", "_"), 100.0)))
        peer.samples.append(Sample(name, 50.0))
    return Report(plan, MACHINE, work(write_tiny(tmp_path / "tiny.gguf", FAMILIES[0])), [ours, peer], REQUIRED)


def test_a_report_says_that_its_run_was_stopped(tmp_path: Path) -> None:
    whole = report(tmp_path)
    assert "stopped before its end" not in whole.markdown()
    assert "stopped before its end" in replace(whole, stopped=True).markdown()


def limits(rate: float) -> Limits:
    return {name: {"how": "by hand", "2": rate} for name in ("read_GBps", "int8", "int8 in blocks", "float")}


def test_a_share_is_that_of_what_the_machine_allowed_at_that_time(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.rows[0].samples = [Sample("b1", value, limits=limits(rate)) for value, rate in ((5e3, 5.0), (1e4, 10.0), (1.3e4, 26.0))]
    told = made.markdown()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines() if line.startswith("| b1 ")]
    assert rows[0][1] == "10000", "the median"
    least = min(float(cell) for cell in rows[0][2:5])
    assert float(rows[0][-1].removesuffix(" %")) == pytest.approx(100 * 1e4 / least, abs=0.5), "of what was allowed when it was measured"


def test_limits_are_the_better_of_those_before_and_after_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    seen = iter([limits(1.0), limits(3.0), limits(2.0)])
    between = Between(lambda: next(seen))
    between.emit("b1", [7.0, 8.0])
    between.emit("b4", [9.0])
    told = [json.loads(line.removeprefix(MARK)) for line in capsys.readouterr().out.splitlines()]
    assert told == [[column, value, {}, limits(3.0)] for column, value in (("b1", 7.0), ("b1", 8.0), ("b4", 9.0))]


def kept(tmp_path: Path, before: Report, now: Report) -> bool:
    path = write(before.markdown(), before.to_json(), MACHINE, tmp_path / "results")
    return Baseline.read(path.with_suffix(".json")).kept(now)


def test_columns_say_how_long_prompts_and_contexts_are() -> None:
    assert PLAN.columns == ["prefill", "b1", "b4", "b8", "b16", "b32", "prefill 1500", "b1@1500", "b8@1500", "b16@1500", "prefill 8000"]
    assert Plan.from_json(PLAN.to_json()) == PLAN


def test_a_model_is_not_asked_for_more_than_its_context(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", FAMILIES[0])
    made = run.make_plan(run.parse(["--model", str(model)]), Store(tmp_path))
    assert run.DEEP < work(model).context < run.LONG
    assert (made.deep, made.long) == (run.DEEP, 0)
    assert max(stage.sequence for stage in made.stages) <= work(model).context


def test_a_worker_makes_room_for_each_stage_and_measures_each_column_once_a_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    class Engine:
        """Notes what it was asked."""

        def __init__(self) -> None:
            self.stage: Stage | None = None
            self.prompts: list[tuple[int, ...]] = []

        def open(self, stage: Stage) -> None:
            self.stage = stage

        def prefill(self, tokens: Sequence[int]) -> float:
            assert self.stage is not None and len(tokens) <= self.stage.sequence
            self.prompts.append(tuple(tokens))
            return float(len(tokens))

        def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
            assert self.stage is not None and len(prompts) <= self.stage.slots
            assert all(len(tokens) + steps < self.stage.sequence for tokens in prompts)
            self.prompts += map(tuple, prompts)
            return float(len(prompts))

    engine = Engine()
    plans.measure(engine, PLAN)
    said = [json.loads(line.removeprefix(plans.MARK)) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, *_ in said] == ["prefill"] * PLAN.repeats + PLAN.columns[1:]
    assert {name: value for name, value, *_ in said}["prefill 8000"] == 8000
    assert len(set(engine.prompts)) == len(engine.prompts)  # no cache of prefixes can help


@pytest.mark.parametrize("kv_type", get_args(KvType))
def test_our_core_is_measured_in_every_stage(tmp_path: Path, kv_type: KvType) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", FAMILIES[0])
    plan = Plan(str(model), 1, prefill=24, context=8, steps=4, batches=(1, 2), repeats=1, deep=40, deep_batches=(1,), long=60)
    vocab = FAMILIES[0].vocab
    assert plan.stages[-1].sequence <= work(model).context
    limits = tmp_path / "machine"
    limits.write_text("#!/bin/sh\necho '{\"read_GBps\": {\"'$1'\": 5.0}}'\n")
    limits.chmod(0o755)
    engine = Small(plan, Store(tmp_path), vocab=vocab, kv_type=kv_type, limits=str(limits))
    engine.model = model
    samples = list(engine.samples())
    assert {sample.column for sample in samples} == {*plan.columns, "load"}
    assert min(sample.value for sample in samples) > 0
    assert [sample.column for sample in samples if sample.limits != {"read_GBps": {"1": 5.0}}] == ["load"]


class Small(Ours):
    """With prompts of the tokens that a small model has."""

    def __init__(self, plan: Plan, store: Store, *, vocab: int, kv_type: KvType, limits: str) -> None:
        super().__init__(plan, store, kv_type=kv_type, limits=limits)
        self._vocab = vocab

    def command(self) -> list[str | Path]:
        code = (
            f"import bench.common.plan as plan, bench.engines.worker_ours as worker; ids = plan.prompt\n"
            f"plan.prompt = lambda serial, length: [token % {self._vocab} for token in ids(serial, length)]\n"
            "worker.main()"
        )
        python, _, _, *given = super().command()
        return [python, "-c", code, *given]


def test_instruction_sets_are_rows_of_their_own_and_the_core_is_made_to_take_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.logs.mkdir()
    wanted = [engine for engine in engines(PLAN, store, run.parse(["--isa", "portable,sse9"]).isa) if engine.group == "ours"]
    rows = run.prepare(wanted)
    portable, unknown = rows.values()
    assert (portable.name, portable.version.split()[-1], portable.reason) == ("Quintet, core, portable", "portable", "")
    assert unknown.name == "Quintet, core, sse9"
    assert "instruction set 'sse9' cannot run here" in unknown.reason


def test_the_types_of_keys_and_values_are_rows_of_their_own(tmp_path: Path) -> None:
    options = run.parse(["--kv-type", "f16,q8"])
    rows = [engine for engine in engines(PLAN, Store(tmp_path), options.isa, options.kv_type) if isinstance(engine, Ours)]
    assert [row.title for row in rows] == ["Quintet, core", "Quintet, core, --kv-type q8"]
    assert len({row.key for row in rows}) == 2
    assert rows[1].command()[-2:] == ["q8", ""]


def test_an_engine_that_crashes_is_told_with_its_last_words(tmp_path: Path) -> None:
    class Crashing(Worker):
        group, name = "crashing", "A peer"

        def install(self) -> str:
            return "1"

        def command(self) -> list[str | Path]:
            python = Ours(self.plan, self.store).command()[0]
            code = (
                "import os, sys; print('@ [\"prefill\", 7.0]', flush=True); print('out of luck', file=sys.stderr, flush=True); os.abort()"
            )
            return [python, "-c", code]

    model = write_tiny(tmp_path / "tiny.gguf", FAMILIES[0])
    plan = Plan(str(model), 1, rounds=2)
    engine = Crashing(plan, Store(tmp_path))
    rows = run.prepare([engine])
    run.measure(plan, [engine], rows)
    row = rows[engine.key]
    assert [sample.value for sample in row.samples] == [7.0]
    assert "(-6)" in row.reason and "out of luck" in row.reason
    assert f"A peer, as in the file: {row.reason}" in Report(plan, MACHINE, work(model), [row], REQUIRED).markdown()


def test_a_loss_of_more_than_a_twentieth_in_any_column_fails(tmp_path: Path) -> None:
    before = report(tmp_path)
    assert kept(tmp_path, before, report(tmp_path, b8=96.0, prefill_8000=120.0))
    assert not kept(tmp_path, before, report(tmp_path, b16_at_1500=94.0))


def test_results_of_another_machine_or_model_are_not_compared(tmp_path: Path) -> None:
    before = report(tmp_path)
    for other, what in (
        (replace(before, machine=replace(MACHINE, cpu="Another")), "CPU"),
        (replace(before, plan=replace(PLAN, model="other.gguf")), "model"),
        (replace(before, plan=replace(PLAN, threads=1)), "number of threads"),
        (replace(before, rows=[row for row in before.rows if not row.ours]), "no figure"),
    ):
        with pytest.raises(PeerError, match=what):
            kept(tmp_path, before, other)
    (tmp_path / "no.json").write_text('{"rows": 1}')
    with pytest.raises(PeerError, match=r"no\.json is not the JSON of a result"):
        Baseline.read(tmp_path / "no.json")


def test_the_chart_has_a_bar_for_each_engine_in_each_column_as_long_as_it_is_fast(tmp_path: Path) -> None:
    picture = report(tmp_path, b1=200.0).chart()
    path = write("# Report\n", {}, MACHINE, tmp_path, chart=picture)
    assert path.read_text().startswith("![") and f"({path.stem}.svg)" in path.read_text()
    space = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(path.with_suffix(".svg").read_text())
    bars = [(bar, title.text or "") for bar in root.iter(f"{space}rect") if (title := bar.find(f"{space}title")) is not None]
    assert {said.split(":")[0] for _, said in bars} == {"Quintet, core", "A <peer>"}
    widths = [float(bar.attrib["width"]) for bar, _ in bars]
    assert len(widths) == 2 * len(PLAN.columns)
    ours, peers = widths[2], widths[3]  # of b1
    assert ours == pytest.approx(4 * peers, rel=0.01)
    assert "4.00 x" in [text.text for text in root.iter(f"{space}text")]
