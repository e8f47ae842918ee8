"""Servers under the loads that users make, ours and its peers in one run: ``python -m bench.serving.serve`` (docs/benchmarks.md says more).

Progress goes to stderr, the report to stdout and, with all that was measured as JSON, into ``bench/results/``.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bench.common.command import look_at_machine, model_path, parser_of, run_alone, some_of, write
from bench.common.install import Store
from bench.common.plan import Plan
from bench.common.proc import PeerError, say
from bench.serving.contestants import Contestant, Running, contestants
from bench.serving.copying import Copying
from bench.serving.report import Part, ServeReport
from bench.serving.scenarios import (
    CORE,
    NATIVE,
    OPENVINO,
    OURS,
    QUICK,
    VLLM,
    VLLM_BF16,
    WHEEL,
    Arrival,
    Clients,
    Prefix,
    Prompts,
    Rates,
    Samples,
    Scenario,
    Sizes,
)
from bench.serving.scoring import Scoring

SCENARIOS: tuple[type[Scenario], ...] = (Clients, Prefix, Samples, Scoring, Arrival, Copying, Rates)
KEYS = tuple(scenario.key for scenario in SCENARIOS)
ENGINES = (OURS, CORE, WHEEL, NATIVE, OPENVINO, VLLM, VLLM_BF16)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line -> options."""
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="small loads: shows that all works, its figures are rough")
    parser.add_argument("--only", type=some_of(KEYS), default=KEYS, help=f"some of the scenarios: {','.join(KEYS)}")
    parser.add_argument("--engines", type=some_of(ENGINES), default=ENGINES, help=f"some of the engines: {','.join(ENGINES)}")
    parser.add_argument("--url", help="completions of a running server, measured under the name of ours instead of all engines")
    parser.add_argument("--name", default="default", help="with --url: the model's name there")
    parser.add_argument("--vocab", type=int, default=Sizes().vocab, help="with --url: token ids of prompts are below this")
    return parser.parse_args(argv)


def prepare(found: Iterable[Contestant], labels: dict[str, str]) -> dict[str, Contestant]:
    """Those that can be had, by key; ``labels`` gets what each is, or why it is not there."""
    ready = {}
    for contestant in found:
        try:
            labels[contestant.key] = contestant.prepare()
            ready[contestant.key] = contestant
        except PeerError as error:
            labels[contestant.key] = f"not there: {error}"
            say(f"{contestant.key}: {error}")
    return ready


def measure(part: Part, ready: Mapping[str, Contestant], base: Plan, prompts: Prompts) -> None:
    """One scenario, its rounds interleaved; what came of it goes into ``part``."""
    scenario = part.scenario
    for turn in range(scenario.rounds):
        for key in scenario.engines:
            if key not in ready or key in part.reasons:
                continue
            say(f"{scenario.key}, round {turn + 1}/{scenario.rounds}: {key}")
            try:
                for shown in ready[key].measure(scenario, base, prompts):
                    part.shown.append(shown)
                    told = ", ".join(f"{name} {value:.4g}" for name, value in list(shown.figures.items())[:6])
                    say(f"    {shown.variant} {told or shown.note}".replace("     ", "    "))
            except PeerError as error:
                part.reasons[key] = str(error)
                say(f"    {error}")


def run(options: argparse.Namespace, store: Store) -> int:
    """All of it; 130 if it was stopped, after the report of what there was."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that children end with us
    base = Plan("" if options.url else model_path(options.model), options.threads)
    sizes = replace(QUICK if options.quick else Sizes(), vocab=options.vocab)
    found = [Running(options.url, options.name, store)] if options.url else contestants(base, store)
    labels: dict[str, str] = {}
    parts = [Part(scenario(sizes)) for scenario in SCENARIOS if scenario.key in options.only]
    machine, prompts, code = look_at_machine(), Prompts(sizes.vocab), 0
    try:
        wanted = {key for part in parts for key in part.scenario.engines} & {*options.engines}
        ready = prepare([one for one in found if one.key in wanted], labels)
        for part in parts:
            measure(part, ready, base, prompts)
    except KeyboardInterrupt:
        say("stopped; what was measured follows")
        code = 130
    parts = [part for part in parts if part.shown or part.reasons]
    if not parts:
        return code
    report = ServeReport(options.url or base.model, options.threads, sizes, machine, labels, parts)
    path = write(report.markdown(), report.to_json(), machine, options.results, "serve-")
    print(report.markdown())
    say(f"written: {path} and {path.with_suffix('.json').name}")
    return code


def main(argv: Sequence[str]) -> int:
    """The exit code, see ``run_alone``."""
    return run_alone(run, parse(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
