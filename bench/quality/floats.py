"""What ``--quantize`` costs and gains: speed, memory and KL of its choices, on a float model made of a quantised one.

    python -m bench.quality.floats [MODEL] [--rounds 7] [--threads N] [--folder FOLDER]

The float model is BF16: each weight of MODEL, moved at random within the step that it was once rounded by, as nobody knows where there the
original lay. Without that, 4 bits would find the old grid again and lose nothing. Beside the engine's own 4 bits stand plain ones, as the
``gguf`` package makes them (Q4_1: from the least to the largest value). KL is against ``none`` over ``bench/data``, and needs a MODEL for
which ``bench/quality/accuracy_peers.py`` recorded token ids. Speeds are in turns, ratios the medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from tests.reference import divergence
from tests.support.loading import native_loader

from bench.common.command import model_path
from bench.quality import accuracy
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import Batch, Runner
from quintet.config import Quantize

F32 = npt.NDArray[np.float32]
STEPS = {"prefill of 256": (1, 256), "decode, 1 sequence": (1, 1), "decode, 8 sequences": (8, 1)}
"""What is timed: sequences, and new tokens of each."""
CONTEXT = 320


def dithered(tensor: gguf.ReaderTensor, rng: np.random.Generator) -> F32:
    """The values of a tensor of blocks that begin with their fp16 scale, each moved by up to half of it."""
    size = gguf.GGML_QUANT_SIZES[tensor.tensor_type][1]
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    scales = np.abs(tensor.data.reshape(-1, size)[:, :2].copy().view(np.float16).astype(np.float32))
    moved = values.reshape(len(scales), -1) + rng.uniform(-0.5, 0.5, (len(scales), 32)).astype(np.float32) * scales
    return np.asarray(moved.reshape(values.shape), np.float32)


def rewrite(source: Path, target: Path, kind: Type) -> None:
    """A copy of the model with its matrices as ``kind``, the same values for each kind."""
    reader, rng = gguf.GGUFReader(source), np.random.default_rng(0)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=item)
    for tensor in reader.tensors:
        if tensor.tensor_type == Type.F32:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            values = gguf.quants.dequantize(gguf.quants.quantize(dithered(tensor, rng), Type.BF16), Type.BF16)
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Engine:
    """A model that was loaded in one of the ways."""

    def __init__(self, path: Path, threads: int, quantize: Quantize) -> None:
        begin = time.perf_counter()
        self.runner: Any = native_loader(path, threads=threads, context=accuracy.WINDOW, quantize=quantize)(lambda _share: None).runner
        self.seconds = time.perf_counter() - begin
        self.runner.allocate(8 * -(-accuracy.WINDOW // PAGE))

    def logits(self, ids: accuracy.Ids) -> F32:
        return np.array(self.runner.logits(forward(self.runner, ids[None], np.arange(len(ids)))))

    def time(self, sequences: int, new: int) -> float:
        """Seconds of the best of three steps."""
        ids = np.random.default_rng(1).integers(0, self.runner.vocab, (sequences, new)).astype(np.int32)
        best = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            hidden = forward(self.runner, ids, np.arange(1, sequences + 1) * new - 1, CONTEXT - new if new == 1 else 0)
            self.runner.logits(hidden)
            best = min(best, time.perf_counter() - begin)
        return best


def forward(runner: Runner, ids: accuracy.Ids, rows: npt.NDArray[np.int64], start: int = 0) -> npt.NDArray[np.uint8]:
    """One step of sequences [S, T] of which ``start`` tokens are there."""
    count, pages = len(ids), -(-accuracy.WINDOW // PAGE)
    tables = np.arange(count * pages, dtype=np.int32).reshape(count, pages)
    lengths, starts = np.full(count, ids.shape[1], np.int32), np.full(count, start, np.int32)
    return runner.forward(Batch(ids.reshape(-1), lengths, starts, tables, rows.astype(np.int32)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=accuracy.user_cache(), help="where the float models are kept")
    args = parser.parse_args()
    source = Path(model_path(args.model))
    args.folder.mkdir(parents=True, exist_ok=True)
    files = {kind: args.folder / f"{source.stem}-{kind.name}.gguf" for kind in (Type.BF16, Type.Q4_1)}
    for kind, file in files.items():
        if not file.exists():
            partial = file.with_suffix(f".{os.getpid()}")
            rewrite(source, partial, kind)
            partial.replace(file)
    ways: dict[str, tuple[Type, Quantize]] = {
        "none": (Type.BF16, "none"), "q8": (Type.BF16, "q8"), "q4": (Type.BF16, "q4"), "plain 4 bits": (Type.Q4_1, "q8"),
    }  # fmt: skip
    engines = {name: Engine(files[kind], args.threads, quantize) for name, (kind, quantize) in ways.items()}
    stretches = accuracy.windows(accuracy.recorded(source)["tokens"])
    parts: dict[str, list[divergence.Divergence]] = {name: [] for name in engines}
    for ids in stretches:
        truth = engines["none"].logits(ids)
        for name, engine in engines.items():
            parts[name].append(divergence.diverge(ids, truth, engine.logits(ids)))
    times: dict[str, list[list[float]]] = {name: [] for name in engines}
    for turn in range(args.rounds):
        for name in list(engines)[:: 1 if turn % 2 else -1]:
            times[name].append([engines[name].time(*step) for step in STEPS.values()])
    print(f"| {' | '.join(['--quantize', 'weights', 'load', 'mean KL', 'same top token', 'perplexity', *STEPS])} |")
    print("|---" * (6 + len(STEPS)) + "|")
    for name, engine in engines.items():
        result = divergence.join(parts[name])
        speed = []
        for at in range(len(STEPS)):
            ratios = [none[at] / mine[at] for none, mine in zip(times["none"], times[name], strict=True)]
            speed.append(f"{median(mine[at] for mine in times[name]) * 1e3:.1f} ms, {median(ratios):.2f} x")
        figures = f"{engine.runner.weight_bytes / 1e6:.0f} MB", f"{engine.seconds:.1f} s"
        quality = f"{result.mean_kl:.2e}", f"{100 * result.top1:.2f} %", f"{result.perplexity:.3f}"
        print(f"| {' | '.join([name, *figures, *quality, *speed])} |")


if __name__ == "__main__":
    main()
