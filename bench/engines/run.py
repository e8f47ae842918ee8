"""Every engine side by side on this machine, in one run: ``python -m bench.engines.run`` (docs/benchmarks.md says what is measured).

Progress goes to stderr, the report to stdout and, with a chart and all samples as JSON, into ``bench/results/``. With ``--check`` the exit
code is 3 if Quintet is slower than in an earlier result of such a machine.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from bench.common.command import look_at_machine, model_path, parser_of, run_alone, some_of, write
from bench.common.install import Store, more_than_avx2
from bench.common.plan import Plan
from bench.common.proc import PeerError, say
from bench.engines.baseline import LOST, Baseline
from bench.engines.engines import BUNDLED, Engine
from bench.engines.limits import compiler_options
from bench.engines.model import work
from bench.engines.random_experts import TYPES, Shape, random_model
from bench.engines.report import EXPERTS_REQUIRED, REQUIRED, Report, Row
from bench.engines.rows import engines
from quintet.config import KvType

MACHINE = Path(__file__).parents[1] / "common/machine.cpp"
EXPERTS = ("machine", "ours", "xllamacpp", "openvino")
DEEP, LONG = 1500, 8000
"""Lengths of the longer prompts; a model of a shorter context is measured without them."""
REST = 96
"""Tokens that a sequence may get beside its prompt."""
GROUPS = tuple(dict.fromkeys(engine.group for engine in engines(Plan("", 1), Store(Path()))))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line -> options."""
    parser, parts = parser_of(__doc__), ("machine", *GROUPS)
    parser.add_argument("--rounds", type=int, help="times every engine is measured (default 3)")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that all works, its figures are rough")
    parser.add_argument("--experts", choices=TYPES, help="measure a random model of many experts in this tensor type, in place of --model")
    parser.add_argument("--check", type=Path, metavar="RESULT", help="JSON of an earlier run on such a machine: fail if it was faster")
    isa_help = "instruction sets of the core, a row for each; with avx2 alone, peers are kept to AVX2 too"
    parser.add_argument("--isa", type=lambda text: tuple(text.split(",")), default=("",), help=isa_help)
    kv_help = f"of keys and values in the core, some of {','.join(get_args(KvType))}, a row for each (default f16)"
    parser.add_argument("--kv-type", type=some_of(get_args(KvType)), default=("f16",), help=kv_help)
    parser.add_argument("--only", type=some_of(parts), help=f"some of: {','.join(parts)} (default all; with --experts {','.join(EXPERTS)})")
    options = parser.parse_args(argv)
    options.only = options.only or (EXPERTS if options.experts else parts)
    return options


def make_plan(options: argparse.Namespace, store: Store) -> Plan:
    """Options -> settings."""
    model = model_path(options.model)
    if options.experts:
        model = str(random_model(store.root / "models", Shape(options.experts), Path(model)))
        return Plan(model, options.threads, options.rounds or 3, steps=16 if options.quick else 48, batches=(1, 8, 32), http_tokens=48)
    if options.quick:
        return Plan(model, options.threads, options.rounds or 1, steps=16, batches=(1, 8, 32), clients=(1, 8), http_tokens=32, repeats=1)
    room = work(Path(model)).context - REST
    deep, long = (length if length <= room else 0 for length in (DEEP, LONG))
    return Plan(model, options.threads, options.rounds or 3, deep=deep, long=long)


def limits_program(store: Store, options: argparse.Namespace) -> tuple[str, str]:
    """What measures the machine's limits; and if it cannot be had, why."""
    if "machine" not in options.only:
        return "", ""
    try:
        return str(store.compiled(MACHINE, "machine", *compiler_options(options.isa))), ""
    except PeerError as error:
        return "", str(error)


def prepare(wanted: Sequence[Engine]) -> dict[str, Row]:
    """A row per engine; those that cannot be had carry the reason."""
    rows = {}
    for engine in wanted:
        row = rows[engine.key] = Row.of(engine)
        try:
            row.version = engine.prepare()
        except PeerError as error:
            row.reason = str(error)
            say(f"{engine.title}, {engine.weights}: {error}")
    return rows


def measure(plan: Plan, wanted: Sequence[Engine], rows: dict[str, Row]) -> None:
    """All rounds, interleaved: what disturbs the machine for a while disturbs every engine. Samples go into ``rows``."""
    for turn in range(plan.rounds):
        for engine in wanted:
            row = rows[engine.key]
            if row.reason:
                continue
            say(f"round {turn + 1}/{plan.rounds}: {engine.title}, {engine.weights}")
            try:
                engine.measured(row.samples)
            except PeerError as error:
                row.reason = str(error)
                say(f"    {error}")


def run(options: argparse.Namespace, store: Store) -> int:
    """All of it; 130 if it was stopped, after the report of what there was."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that children end with us
    before = Baseline.read(options.check) if options.check else None
    if options.isa == ("avx2",) and more_than_avx2():
        store = replace(store, isa="avx2")
    plan, code = make_plan(options, store), 0
    program, reason = limits_program(store, options)
    wanted = [
        engine
        for engine in engines(plan, store, options.isa, options.kv_type, program)
        if engine.group in options.only and (engine.weights == BUNDLED or not options.experts)
    ]
    rows: dict[str, Row] = {}
    try:
        rows = prepare(wanted)
        machine = replace(look_at_machine(), limits_reason=reason)
        measure(plan, wanted, rows)
    except KeyboardInterrupt:
        say("stopped; what was measured follows")
        code = 130
        if not any(row.samples for row in rows.values()):
            return code
    required = EXPERTS_REQUIRED if options.experts else REQUIRED
    report = Report(plan, machine, work(Path(plan.model)), list(rows.values()), required, stopped=code != 0)
    path = write(report.markdown(), report.to_json(), machine, options.results, "experts-" if options.experts else "", report.chart())
    print(report.markdown())
    say(f"written: {path}, and the same as .json and .svg")
    if before is not None and not before.kept(report):
        return code or LOST
    return code


def main(argv: Sequence[str]) -> int:
    """The exit code, see ``run_alone``."""
    return run_alone(run, parse(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
