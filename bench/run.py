"""Every engine side by side on this machine, in one run: ``python bench/run.py`` (docs/benchmarks.md says what is measured).

Progress goes to stderr, the report to stdout and, with all samples as JSON, into ``bench/results/``.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engines import Engine, engines
from install import Store, cache_dir, cpu_info
from model import work
from plan import Plan
from proc import PeerError, output, say
from quintet.models import store as models
from report import Machine, Report, Row

HERE = Path(__file__).parent
NOTABLE = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm", "sve")
GROUPS = tuple(dict.fromkeys(engine.group for engine in engines(Plan("", 1), Store(Path()))))


class _Progress:
    """The model store's messages as progress lines."""

    def note(self, line: str) -> None:
        say(line)

    def progress(self, done: int, total: int) -> None:
        """Not shown: the file is small."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line -> options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="model reference or path of a .gguf file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    parser.add_argument("--rounds", type=int, help="times every engine is measured (default 3)")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that all works, its figures are rough")
    parser.add_argument("--only", type=names, default=("machine", *GROUPS), help=f"some of: machine,{','.join(GROUPS)}")
    parser.add_argument("--peers-dir", type=Path, default=cache_dir(), help="where peers are installed (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where the report is written (default: %(default)s)")
    return parser.parse_args(argv)


def names(text: str) -> tuple[str, ...]:
    """The value of ``--only``."""
    wanted = tuple(text.split(","))
    for name in wanted:
        if name not in ("machine", *GROUPS):
            raise argparse.ArgumentTypeError(f"{name!r} is none of machine,{','.join(GROUPS)}")
    return wanted


def make_plan(options: argparse.Namespace) -> Plan:
    """Options -> settings."""
    model = models.resolve(options.model, _Progress()).path
    if options.quick:
        return Plan(
            str(model), options.threads, options.rounds or 1, steps=16, batches=(1, 8, 32), clients=(1, 8), http_tokens=32, repeats=1
        )
    return Plan(str(model), options.threads, options.rounds or 3)


def look_at_machine(store: Store, threads: int, *, measure: bool) -> Machine:
    """The CPU, how busy it is, and its limits."""
    info, load = cpu_info(), os.getloadavg()
    name = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    cpu, words = name[1] if name else platform.processor() or platform.machine(), set(info.split())
    flags, limits, reason = " ".join(flag for flag in NOTABLE if flag in words), {}, ""
    if measure:
        try:
            say("machine: read bandwidth and multiply-add rates")
            limits = json.loads(output([store.compiled(HERE / "machine.cpp", "machine"), str(threads)], store.log("machine"), 300))
        except PeerError as error:
            reason = str(error)
    return Machine(cpu, flags, os.cpu_count() or 1, load, limits, reason)


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Hold the cache directory's lock: two runs at once would disturb each other. Raises ``PeerError`` if one is under way."""
    store.root.mkdir(parents=True, exist_ok=True)
    with (store.root / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PeerError(f"another run uses {store.root}; wait for it, or give another --peers-dir") from None
        yield


def prepare(wanted: Sequence[Engine]) -> dict[str, Row]:
    """A row per engine; those that cannot be had carry the reason."""
    rows = {}
    for engine in wanted:
        row = rows[engine.key] = Row.of(engine)
        try:
            row.version = engine.prepare()
        except PeerError as error:
            row.reason = str(error)
            say(f"{engine.name}, {engine.weights}: {error}")
    return rows


def measure(plan: Plan, wanted: Sequence[Engine], rows: dict[str, Row]) -> None:
    """All rounds, interleaved: what disturbs the machine for a while disturbs every engine. Samples go into ``rows``."""
    for turn in range(plan.rounds):
        for engine in wanted:
            row = rows[engine.key]
            if row.reason:
                continue
            say(f"round {turn + 1}/{plan.rounds}: {engine.name}, {engine.weights}")
            try:
                for sample in engine.samples():
                    row.samples.append(sample)
                    say(f"    {sample.column}: {sample.value:.4g}")
            except PeerError as error:
                row.reason = str(error)
                say(f"    {error}")


def write(report: Report, folder: Path) -> Path:
    """Write the report and all samples; the path of the report."""
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", report.machine.cpu.lower()).strip("-")
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{slug}.md"
    path.write_text(report.markdown())
    path.with_suffix(".json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    return path


def run(options: argparse.Namespace, store: Store) -> int:
    """All of it; 130 if it was stopped, after the report of what there was."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that children end with us
    plan, code = make_plan(options), 0
    wanted = [engine for engine in engines(plan, store) if engine.group in options.only]
    rows: dict[str, Row] = {}
    try:
        rows = prepare(wanted)
        machine = look_at_machine(store, plan.threads, measure="machine" in options.only)
        measure(plan, wanted, rows)
    except KeyboardInterrupt:
        say("stopped; what was measured follows")
        code = 130
        if not any(row.samples for row in rows.values()):
            return code
    report = Report(plan, machine, work(Path(plan.model)), list(rows.values()))
    path = write(report, options.results)
    print(report.markdown())
    say(f"written: {path} and {path.with_suffix('.json').name}")
    return code


def main(argv: Sequence[str]) -> int:
    """The exit code: 1 if another run is under way, else as ``run``."""
    options = parse(argv)
    store = Store(options.peers_dir)
    try:
        with alone(store):
            return run(options, store)
    except PeerError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
