"""The engine against transformers, with tiny models of its own classes: from a GGUF file, and from the folder that transformers saves.

Their matrices are exact in every type that is used here, so that the engine's roundings are all that is left. With weights in 8 bits these
are of activations, keys and values: on random weights they cost as much as llama.cpp's, and a router that is rounded may take another
expert. With weights that are kept in floats they are of keys and values alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from tests.e2e.paged import Ids, LoadRunner, logits_of, run_alone, whole
from tests.reference.as_gguf import ARCHITECTURES, has_file, write_gguf
from tests.reference.divergence import F64, log_softmax
from tests.reference.folders import Source, write_tokenizer
from tests.reference.transformers_tiny import EVERY, GREEDY, PROMPT, Answers, answers, models

from bench.quality.families import FIGURES, PEER
from quintet.models.families import FAMILIES
from quintet.models.folder.kinds import KINDS

FILES = [name for name, tiny in models().items() if has_file(tiny) and ARCHITECTURES[tiny.config["model_type"]] in FAMILIES]
FOLDERS = [name for name, tiny in models().items() if tiny.config["model_type"] in KINDS]
THEIRS = json.loads(FIGURES.read_text())["kl"][PEER]
MISREAD = {"gpt_oss", "starcoder2"}
"""Of which llama.cpp, whose figures are the bound, computes something else than transformers, or something less."""


def engine_of(path: Path, load_runner: LoadRunner, ids: Ids, quantize: str) -> F64:
    """Log-probabilities after each token."""
    runner = load_runner(path, 2, quantize=quantize)
    return log_softmax(logits_of(runner, run_alone(runner, whole(ids))))


def mean_kl(theirs: Answers, found: F64) -> float:
    """Of predictions after every ``EVERY``-th token of the recorded text."""
    return float((np.exp(theirs.rows) * (theirs.rows - found[::EVERY])).sum(axis=-1).mean())


def bound(name: str) -> float:
    """Few positions are compared here, and a router that takes another expert at one of them is much of their mean."""
    return 0.15 if name in MISREAD else (5 if "num_experts_per_tok" in models()[name].config else 1.6) * THEIRS[name]


@pytest.mark.parametrize("name", FILES)
def test_a_gguf_file_computes_what_transformers_does(name: str, tmp_path: Path, load_runner: LoadRunner) -> None:
    path = write_gguf(tmp_path / f"{name}.gguf", models()[name], Type.Q8_0)
    assert mean_kl(answers(name), engine_of(path, load_runner, answers(name).tokens, "q8")) < bound(name)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_folder_that_transformers_saves_gives_its_greedy_text(name: str, tmp_path: Path, load_runner: LoadRunner) -> None:
    """Unless two tokens are as likely as can be told with keys and values in 16 bits."""
    theirs, tiny = answers(name), models()[name]
    folder = tiny.write(tmp_path / name)
    write_tokenizer(folder, Source(write_gguf(tmp_path / "tokens.gguf", tiny)))
    found = engine_of(folder, load_runner, theirs.tokens, "none")
    assert mean_kl(theirs, found) < 2e-4
    asked, chosen = found[PROMPT - 1 : -1], theirs.tokens[PROMPT:]
    behind = asked.max(axis=-1) - asked[np.arange(GREEDY), chosen]
    assert (behind > 0).sum() <= 3
    assert behind.max() < 0.05
