"""How far the engine's predictions are from exact arithmetic on the same weights, beside llama.cpp's.

The reference is ``tests/reference/forward.py`` (float32, no quantised activations, no half-precision keys). The text is ``bench/data``; its
token ids and llama.cpp's figures were recorded by ``bench/quality/accuracy_peers.py``, for each model in a file of its own.

    python -m bench.quality.accuracy MODEL.gguf               print the table
    python -m bench.quality.accuracy MODEL.gguf ... --write   also write docs/accuracy.md, which needs all models that were recorded
    python -m bench.quality.accuracy MODEL.gguf --check       fail if ours is further from the reference than llama.cpp
    python -m bench.quality.accuracy MODEL.gguf --kv-type q8  print also what keys and values of 8 bits cost
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from tests.reference import dequantize, divergence, forward

from quintet.config import KvType

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "bench" / "data"
RECORDED = DATA / "llama_cpp"
TEXTS = ("prose.txt", "code.txt")
WINDOW = 512
"""Tokens of each stretch of text, every stretch from an empty context."""

Ids = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
Engine = Callable[[Ids], F32]
"""Ids [T] to logits float32 [T, V]."""


def digest(*parts: bytes) -> str:
    """SHA-256 of the parts, in hexadecimal."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def text_digest() -> str:
    return digest(*((DATA / name).read_bytes() for name in TEXTS))


def record_of(model: Path) -> Path:
    """Where llama.cpp's figures of a model file are kept."""
    return RECORDED / f"{model.stem}.json"


def recorded(model: Path) -> dict[str, Any]:
    """The recorded ids and figures.

    Raises:
        ValueError: there are none, or they were recorded for another model file or other text.
    """
    file = record_of(model)
    if not file.exists():
        raise ValueError(f"nothing was recorded for {model.name}: run bench/quality/accuracy_peers.py")
    found: dict[str, Any] = json.loads(file.read_text())
    if found["model_sha256"] != digest(model.read_bytes()):
        raise ValueError(f"{file.name} was recorded for another model file than {model}")
    if found["text_sha256"] != text_digest():
        raise ValueError(f"{file.name} was recorded for other text than bench/data holds: run bench/quality/accuracy_peers.py")
    return found


def windows(texts: dict[str, list[int]]) -> list[Ids]:
    """The complete windows of each text's ids."""
    return [
        np.asarray(ids[start : start + WINDOW], dtype=np.int32)
        for ids in texts.values()
        for start in range(0, len(ids) - WINDOW + 1, WINDOW)
    ]


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintet" / "bench"


def reference_hidden(reference: forward.Reference, model: Path, stretches: list[Ids], folder: Path) -> list[F32]:
    """Final hidden states of the stretches, kept in ``folder``: they take a minute, the output matrix only seconds."""
    oracle = [Path(module.__file__ or "").read_bytes() for module in (forward, dequantize)]
    key = digest(model.read_bytes(), *(ids.tobytes() for ids in stretches), *oracle)
    cache = folder / f"hidden-{key[:32]}.npz"
    if cache.exists():
        with np.load(cache) as saved:
            return [saved[name] for name in saved.files]
    hidden = reference.hidden(stretches)
    folder.mkdir(parents=True, exist_ok=True)
    partial = cache.with_suffix(f".{os.getpid()}.npz")
    np.savez_compressed(partial, *hidden)
    partial.replace(cache)
    return hidden


def compare(model: Path, stretches: list[Ids], engines: dict[str, Engine], folder: Path) -> dict[str, divergence.Divergence]:
    """Each engine against the reference over all stretches; ``folder`` keeps the reference's hidden states."""
    reference = forward.Reference(model)
    hidden = reference_hidden(reference, model, stretches, folder)
    parts: dict[str, list[divergence.Divergence]] = {name: [] for name in engines}
    output = reference.output()
    for ids, states in zip(stretches, hidden, strict=True):
        truth = states @ output.T
        for name, engine in engines.items():
            parts[name].append(divergence.diverge(ids, truth, engine(ids)))
    return {name: divergence.join(part) for name, part in parts.items()}


def figures(result: divergence.Divergence) -> dict[str, float]:
    return {
        "positions": len(result.kl),
        "mean_kl": result.mean_kl,
        "p99_kl": result.p99_kl,
        "top1": result.top1,
        "perplexity": result.perplexity,
        "reference_perplexity": result.reference_perplexity,
    }


def quintet_engine(model: Path, threads: int, kv_type: KvType = "f16") -> Engine:
    """Our native engine: each call is one prefill of the whole window."""
    from tests.support.loading import native_loader

    from quintet.backends.native.core.loader import PAGE
    from quintet.backends.native.core.types import Batch

    runner = native_loader(model, threads=threads, context=WINDOW, kv_type=kv_type)(lambda _: None).runner
    pages = -(-WINDOW // PAGE)
    runner.allocate(pages)
    table = np.arange(pages, dtype=np.int32)[None]

    def engine(ids: Ids) -> F32:
        start, length = np.zeros(1, dtype=np.int32), np.array([len(ids)], dtype=np.int32)
        rows = np.arange(len(ids), dtype=np.int32)
        return runner.logits(runner.forward(Batch(ids, length, start, table, rows)))

    return engine


def table(rows: Iterable[tuple[str, dict[str, float]]]) -> str:
    """A Markdown table of named figures."""
    lines = ["| engine | mean KL | 99th percentile KL | same top token | perplexity |", "|---|---|---|---|---|"]
    for name, row in rows:
        lines.append(f"| {name} | {row['mean_kl']:.2e} | {row['p99_kl']:.2e} | {100 * row['top1']:.2f} % | {row['perplexity']:.3f} |")
    return "\n".join(lines)


def difference(ours: divergence.Divergence, record: dict[str, Any]) -> tuple[float, float]:
    """Mean of (our KL - llama.cpp's) over the same positions, and its standard error."""
    return _mean(ours.kl - np.asarray(record["kl"]))


def rise(ours: divergence.Divergence, other: divergence.Divergence) -> str:
    """What the other's mean KL is above ours."""
    (mean, error), base = _mean(other.kl - ours.kl), ours.kl.mean()
    return f"mean KL rises by {100 * mean / base:.1f} % (standard error {100 * error / base:.1f})"


def _mean(paired: npt.NDArray[np.floating[Any]]) -> tuple[float, float]:
    """And its standard error."""
    return float(paired.mean()), float(paired.std(ddof=1) / len(paired) ** 0.5)


def section(model: Path, record: dict[str, Any], result: divergence.Divergence, shown: str) -> str:
    """A model's part of docs/accuracy.md."""
    mean, error = difference(result, record)
    return f"""## `{model.name}`

{shown}

{len(result.kl)} positions; the reference's perplexity is {result.reference_perplexity:.3f}. llama.cpp: {record["package"]}
(`{record["version"]}`). Position by position, Quintet's KL minus that of llama.cpp with default settings is {mean:+.1e} on average
(standard error {error:.1e}).
"""


def page(sections: Iterable[str]) -> str:
    """docs/accuracy.md."""
    return f"""# Accuracy

Written by `python -m bench.quality.accuracy MODEL.gguf ... --write`; do not edit.

How far are the predictions from exact arithmetic on the same weights? The reference is a numpy forward pass in float32 over the
dequantised weights of each file (`tests/reference/forward.py`). Both engines round activations to 8 bits in blocks of 32 for the matrix
products and keep keys and values in 16 bits (the last row: 32). That rounding is what the figures show.

KL is the Kullback-Leibler divergence (reference || engine) in nats per position, over prose and code (`bench/data`) in windows of {WINDOW}
tokens, each one prefill from an empty context; perplexity is over the same text. Smaller KL is closer to exact. llama.cpp's figures were
recorded by `bench/quality/accuracy_peers.py` on the same file and token ids.

{chr(10).join(sections)}
`python -m bench.quality.accuracy MODEL.gguf --check` fails if ours is further from the reference than llama.cpp with default settings.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="GGUF files that figures were recorded for")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md; the first model comes first")
    parser.add_argument("--kv-type", choices=get_args(KvType), default="f16", help="print also the row of an engine with this")
    parser.add_argument("--check", action="store_true", help="exit 1 if ours is further from the reference than llama.cpp")
    args = parser.parse_args()
    missing = {file.stem for file in RECORDED.glob("*.json")} - {model.stem for model in args.models}
    if args.write and missing:
        parser.error(f"--write needs every model that was recorded; missing: {', '.join(sorted(missing))}")
    sections: list[str] = []
    behind = False
    for model in args.models:
        record = recorded(model)
        kinds = dict.fromkeys(("f16", args.kv_type))
        engines = {kind: quintet_engine(model, args.threads, kind) for kind in kinds}
        results = compare(model, windows(record["tokens"]), engines, user_cache())
        result = results["f16"]
        ours, peer = figures(result), record["figures"]["default"]
        shown = table([("Quintet", ours), *((f"llama.cpp, {name}", row) for name, row in record["figures"].items())])
        print(f"{model.name}\n{shown}", flush=True)
        if args.kv_type != "f16":
            print(table([(f"Quintet, --kv-type {args.kv_type}", figures(results[args.kv_type]))]).splitlines()[-1])
            print(rise(result, results[args.kv_type]), flush=True)
        sections.append(section(model, record, result, shown))
        if ours["mean_kl"] > peer["mean_kl"]:
            print(f"{model.name}: mean KL {ours['mean_kl']:.3e} is above llama.cpp's {peer['mean_kl']:.3e}", file=sys.stderr)
            behind = True
    if args.write:
        (ROOT / "docs" / "accuracy.md").write_text(page(sections))
    return int(args.check and behind)


if __name__ == "__main__":
    sys.exit(main())
