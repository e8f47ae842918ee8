"""What both benchmarks, ``bench.engines.run`` and ``bench.serving.serve``, need around their measurements."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.common.figures import Machine
from bench.common.install import Store, cache_dir, cpu_info
from bench.common.proc import PeerError, say
from quintet.models import store as models

RESULTS = Path(__file__).parents[1] / "results"
NOTABLE = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm", "sve")


class _Progress:
    """The model store's messages as progress lines."""

    def note(self, line: str) -> None:
        say(line)

    def progress(self, done: int, total: int) -> None:
        """Not shown: the file is small."""


def model_path(reference: str) -> str:
    """The file of a model reference."""
    return str(models.resolve(reference, _Progress()).path)


def some_of(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Parser of an option's value: some of these names, separated by commas."""

    def names(text: str) -> tuple[str, ...]:
        wanted = tuple(text.split(","))
        for name in wanted:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {','.join(allowed)}")
        return wanted

    return names


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """With the options that both have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--model", default="smollm2", help="model reference or path of a .gguf file")
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--peers-dir", type=Path, default=cache_dir(), help="where peers are installed (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report is written (default: %(default)s)")
    return parser


def look_at_machine() -> Machine:
    """The CPU, and how busy it is."""
    info, load = cpu_info(), os.getloadavg()
    name = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    cpu, words = name[1] if name else platform.processor() or platform.machine(), set(info.split())
    return Machine(cpu, " ".join(flag for flag in NOTABLE if flag in words), os.cpu_count() or 1, load)


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


def run_alone(run: Callable[[argparse.Namespace, Store], int], options: argparse.Namespace) -> int:
    """Run a benchmark while no other does. The exit code: 1 if one does, or it cannot go on, else the benchmark's own."""
    store = Store(options.peers_dir)
    try:
        with alone(store):
            return run(options, store)
    except PeerError as error:
        say(str(error))
        return 1


def write(markdown: str, samples: Mapping[str, object], machine: Machine, folder: Path, what: str = "", chart: str = "") -> Path:
    """Write a report and all that was measured; the path of the report.

    Args:
        what: stands in the file's name.
        chart: an SVG picture, which the report then begins with; empty = none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", machine.cpu.lower()).strip("-")
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{what}{slug}.md"
    if chart:
        picture = path.with_suffix(".svg")
        picture.write_text(chart)
        markdown = f"![Tokens per second, as multiples of the fastest peer]({picture.name})\n\n{markdown}"
    path.write_text(markdown)
    path.with_suffix(".json").write_text(json.dumps(samples, indent=1) + "\n")
    return path
