"""The engine against transformers, with tiny models of its own classes: from a GGUF file, and from the folder that transformers saves.

Their matrices are exact in every type that is used here, so that the engine's roundings of activations, keys and values are all that is
left; on random weights they cost as much as llama.cpp's, and a router that is rounded may take another expert.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from tests.e2e.paged import LoadRunner, logits_of, run_alone, whole
from tests.reference.as_gguf import ARCHITECTURES, has_file, write_gguf
from tests.reference.divergence import log_softmax
from tests.reference.folders import Source, write_tokenizer
from tests.reference.transformers_tiny import EVERY, answers, models

from bench.quality.families import FIGURES, PEER
from quintet.models.families import FAMILIES
from quintet.models.folder.kinds import KINDS

FILES = [name for name, tiny in models().items() if has_file(tiny) and ARCHITECTURES[tiny.config["model_type"]] in FAMILIES]
FOLDERS = [name for name, tiny in models().items() if tiny.config["model_type"] in KINDS]
THEIRS = json.loads(FIGURES.read_text())["kl"][PEER]
MISREAD = {"gpt_oss", "starcoder2"}
"""Of which llama.cpp, whose figures are the bound, computes something else than transformers, or something less."""


def mean_kl(name: str, path: Path, load_runner: LoadRunner) -> float:
    """Of the engine's predictions after every ``EVERY``-th token of the recorded text."""
    theirs = answers(name)
    runner = load_runner(path, 2)
    rows = log_softmax(logits_of(runner, run_alone(runner, whole(theirs.tokens))))[::EVERY]
    return float((np.exp(theirs.rows) * (theirs.rows - rows)).sum(axis=-1).mean())


def bound(name: str) -> float:
    """Few positions are compared here, and a router that takes another expert at one of them is much of their mean."""
    return 0.15 if name in MISREAD else (5 if "num_experts_per_tok" in models()[name].config else 1.6) * THEIRS[name]


@pytest.mark.parametrize("name", FILES)
def test_a_gguf_file_computes_what_transformers_does(name: str, tmp_path: Path, load_runner: LoadRunner) -> None:
    assert mean_kl(name, write_gguf(tmp_path / f"{name}.gguf", models()[name], Type.Q8_0), load_runner) < bound(name)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_folder_that_transformers_saves_computes_what_transformers_does(name: str, tmp_path: Path, load_runner: LoadRunner) -> None:
    tiny = models()[name]
    folder = tiny.write(tmp_path / name)
    write_tokenizer(folder, Source(write_gguf(tmp_path / "tokens.gguf", tiny)))
    assert mean_kl(name, folder, load_runner) < bound(name)
