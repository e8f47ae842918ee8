"""How far each family's predictions are from exact arithmetic, beside llama.cpp's, and the README's table of families.

    python -m bench.quality.families            measure ours and print the table
    python -m bench.quality.families --write    and keep the figures in bench/data/families.json, and write the README's table
    python -m bench.quality.families --table    write the README's table from the figures that are kept
    python -m bench.quality.families --peer     llama.cpp's figures, in its environment (see bench/quality/accuracy_peers.py)

The models are the tiny ones of transformers' own classes (bench/quality/record_transformers.py), as GGUF files in Q8_0, which holds their
weights exactly: what is measured is the engine's arithmetic alone. The reference is tests/reference/forward.py, which gives transformers'
log-probabilities (tests/reference/test_transformers.py).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from tests.reference import as_gguf, divergence, forward, transformers_tiny

from bench.quality import accuracy

FIGURES = accuracy.DATA / "families.json"
README = accuracy.ROOT / "README.md"
BEGIN, END = "<!-- families -->\n", "<!-- /families -->"
TOKENS = 512
OURS, PEER = "quintet", "llama.cpp"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        models: for example.
        gguf: the file's ``general.architecture``.
        folder: the folder's ``model_type``.
        tiny: of the recorded models, those of the family; the first one's KL is shown.
        fim: models that fill in the middle.
        think: models that think.
        files: real files whose perplexity stands beside llama.cpp's.
    """

    models: str
    gguf: str
    folder: tuple[str, ...]
    tiny: tuple[str, ...]
    fim: str = ""
    think: str = ""
    files: str = ""


_R1 = "DeepSeek R1's distillates"

ROWS = (
    Row(
        "Llama 2 and 3, SmolLM2, TinyLlama; SmolVLM, which sees images",
        "llama",
        ("llama", "idefics3", "smolvlm"),
        ("llama", "llama-tied"),
        "Code Llama",
        _R1,
        "SmolLM2-135M",
    ),
    Row("Mistral, Nemo", "llama", ("mistral",), ("mistral-nemo", "mistral"), "", "Magistral"),
    Row("Mixtral", "llama", ("mixtral",), ("mixtral",)),
    Row("Ministral 3", "mistral3", ("ministral3", "mistral3"), ("ministral3",), "", "its reasoning models"),
    Row("Qwen2.5 and its coders", "qwen2", ("qwen2",), ("qwen2",), "Qwen2.5-Coder", f"QwQ, {_R1}", "Qwen2.5-Coder-0.5B"),
    Row("Qwen3", "qwen3", ("qwen3",), ("qwen3",), "", "yes"),
    Row("Qwen3-30B-A3B and its coder", "qwen3moe", ("qwen3_moe",), ("qwen3_moe",), "Qwen3-Coder", "yes"),
    Row("Gemma, CodeGemma", "gemma", ("gemma",), ("gemma",), "CodeGemma"),
    Row("Gemma 2", "gemma2", ("gemma2",), ("gemma2",)),
    Row("Gemma 3, which sees images from 4B on", "gemma3", ("gemma3_text", "gemma3"), ("gemma3_text",)),
    Row("Phi 3, 3.5 and 4", "phi3", ("phi3",), ("phi4", "phi3"), "", "Phi 4 reasoning"),
    Row("Granite 3; GGUF of 4.0's without Mamba layers", "granite", ("granite",), ("granite",), "Granite 3.3", "Granite 3.3"),
    Row("Granite 3's with experts", "granitemoe", ("granitemoe", "granitemoeshared"), ("granitemoeshared", "granitemoe")),
    Row("OLMo 2", "olmo2", ("olmo2",), ("olmo2",)),
    Row("OLMo 3", "olmo2", ("olmo3",), ("olmo3",), "", "OLMo 3 Think"),
    Row("OLMoE", "olmoe", ("olmoe",), ("olmoe",)),
    Row("gpt-oss", "gpt-oss", ("gpt_oss",), ("gpt_oss",), "", "yes: channels"),
    Row("StarCoder2", "starcoder2", ("starcoder2",), ("starcoder2",), "yes"),
    Row("Seed-OSS", "seed_oss", ("seed_oss",), ("seed_oss",), "", "yes"),
    Row("SmolLM3", "smollm3", ("smollm3",), ("smollm3",), "", "yes"),
)


def table(kl: dict[str, dict[str, float]]) -> str:
    """The README's table as Markdown: a row for each that can be read.

    Args:
        kl: engine -> tiny model -> mean KL.
    """
    from quintet.models.families import FAMILIES  # not there in llama.cpp's environment
    from quintet.models.folder.kinds import KINDS

    lines = [
        "| models, for example | GGUF | folder | FIM | think | checked against | KL | llama.cpp's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        if row.gguf in FAMILIES:
            folders = ", ".join(f"`{name}`" for name in row.folder if name in KINDS) or "no"
            against = "transformers, llama.cpp" + (f"; perplexity of {row.files}" if row.files else "")
            figures = [f"{kl[engine][row.tiny[0]]:.1e}" if row.tiny[0] in kl.get(engine, {}) else "-" for engine in (OURS, PEER)]
            lines.append(
                "| " + " | ".join([row.models, f"`{row.gguf}`", folders, row.fim or "-", row.think or "-", against, *figures]) + " |"
            )
    return "\n".join(lines) + "\n"


def in_readme(text: str, kl: dict[str, dict[str, float]]) -> str:
    """The README with the table in its place.

    Raises:
        ValueError: it has no such place.
    """
    found, count = re.subn(f"{BEGIN}.*{END}", lambda _: BEGIN + table(kl) + END, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"README.md must have one place between {BEGIN.strip()} and {END}")
    return found


def measure(load: Callable[[Path], accuracy.Engine]) -> dict[str, float]:
    """The mean KL of an engine with each tiny model."""
    found: dict[str, float] = {}
    for name, tiny in transformers_tiny.models().items():
        if as_gguf.ARCHITECTURES[tiny.config["model_type"]] not in forward.INTERLEAVED:
            continue
        ids = np.random.RandomState(1).randint(0, tiny.config["vocab_size"], TOKENS).astype(np.int32)
        with tempfile.TemporaryDirectory() as folder:
            path = as_gguf.write_gguf(Path(folder) / "tiny.gguf", as_converted(tiny), Type.Q8_0)
            found[name] = float(f"{divergence.diverge(ids, forward.Reference(path)(ids), load(path)(ids)).mean_kl:.3g}")
        print(f"{name:18} {found[name]:.2e}", flush=True)
    return found


def as_converted(tiny: transformers_tiny.TinyModel) -> transformers_tiny.TinyModel:
    """The model as llama.cpp's converter knows it: some architectures have no windows there."""
    windowless = as_gguf.ARCHITECTURES[tiny.config["model_type"]] in ("llama", "starcoder2")
    return replace(tiny, config={**tiny.config, "sliding_window": None}) if windowless else tiny


def llama_cpp(path: Path) -> accuracy.Engine:
    from bench.quality.accuracy_peers import LAYOUT, LlamaCpp

    return LlamaCpp(path, TOKENS).engine(*LAYOUT["default"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="keep our figures and write the README's table")
    what.add_argument("--table", action="store_true", help="write the README's table from the figures that are kept")
    what.add_argument("--peer", action="store_true", help="keep llama.cpp's figures")
    args = parser.parse_args()
    kept: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"kl": {}}
    if args.peer:
        kept["package"] = f"xllamacpp {importlib.metadata.version('xllamacpp')}"
        kept["kl"][PEER] = measure(llama_cpp)
    elif not args.table:
        kept["kl"][OURS] = measure(lambda path: accuracy.quintet_engine(path, 2))
    if args.write or args.peer:
        FIGURES.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    if args.write or args.table:
        README.write_text(in_readme(README.read_text(), kept["kl"]))
    elif not args.peer:
        print(table(kept["kl"]))


if __name__ == "__main__":
    main()
