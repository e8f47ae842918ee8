"""The engine's predictions against a float32 numpy forward pass over the same weights.

Bounds: the engine states its roundings (8-bit activations, 16-bit keys and values; float matrices are quantised to 8 bits). On the bundled
model they may cost what llama.cpp's cost. On the tiny models, whose random weights amplify them, a bound is about twice what was measured,
and the controls show that any mistake in a flag is far outside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from tests.e2e.paged import CONTEXT, LoadRunner, Run, logits_of, pages_for, run_alone, whole
from tests.reference.divergence import diverge
from tests.reference.forward import Reference, Rotation, rotation
from tests.reference.rounded import Rounded8Reference, RoundedReference
from tests.reference.tiny_model import FAMILIES, SINGLE_TYPES, YARN, TinySpec, random_ids

from bench.quality import accuracy

TinyPath = Callable[[TinySpec], Path]
LENGTH = 256

ROUNDING = 1e-2
"""Mean KL to the plain oracle that the stated roundings may cost each layer of a tiny model."""
ROUTING = 4e-2
"""The same with experts: of two that are nearly as likely, a row that is rounded may take the other."""
REMAINDER = 3e-3
"""Mean KL to the oracle that rounds like the engine. numpy's sums depend on the CPU: some round to the other side."""
MISTAKE = 2e-2
"""What any mistake costs at least."""

QUANTISED_HERE = (Type.F16, Type.BF16, Type.F32, Type.Q6_K)
REQUANTISED = [spec for spec in SINGLE_TYPES if spec.types[0] in QUANTISED_HERE]
EXACT = [*(replace(spec, name=f"{spec.name}-q8", types=(Type.Q8_0,)) for spec in FAMILIES)]
EXACT += [spec for spec in SINGLE_TYPES if spec not in REQUANTISED]
EXACT += [
    replace(spec, name="starcoder2-window-q8", metadata={"attention.sliding_window": 19}) for spec in EXACT if spec.name == "starcoder2-q8"
]
EXACT += [replace(spec, name="gpt-oss-ramp-q8", rope=YARN) for spec in EXACT if spec.name == "gpt-oss-q8"]
"""Models whose weights the engine keeps as they are, but for the rounding of a scale to fp16."""


def engine_logits(load_runner: LoadRunner, path: Path, ids: accuracy.Ids) -> accuracy.F32:
    runner = load_runner(path, 2)
    return logits_of(runner, run_alone(runner, whole(ids)))


@pytest.mark.parametrize("spec", [*FAMILIES, *REQUANTISED], ids=lambda spec: spec.name)
def test_families_and_types_quantised_here_are_close_to_the_reference(spec: TinySpec, tiny_path: TinyPath, load_runner: LoadRunner) -> None:
    ids = random_ids(spec, LENGTH)
    bound = (ROUTING if spec.experts[0] else ROUNDING) * spec.layers
    assert diverge(ids, Reference(tiny_path(spec))(ids), engine_logits(load_runner, tiny_path(spec), ids)).mean_kl < bound


@pytest.mark.parametrize("spec", EXACT, ids=lambda spec: spec.name)
def test_nothing_but_the_stated_roundings_is_left(spec: TinySpec, tiny_path: TinyPath, load_runner: LoadRunner) -> None:
    ids = random_ids(spec, LENGTH)
    assert diverge(ids, RoundedReference(tiny_path(spec))(ids), engine_logits(load_runner, tiny_path(spec), ids)).mean_kl < REMAINDER


@pytest.mark.parametrize("name", ["llama-3-q8", "gemma2-q8", "gpt-oss-q8", "qwen2-untied-q8"])
def test_keys_and_values_in_8_bits_are_rounded_as_stated(name: str, tiny_path: TinyPath, load_runner: LoadRunner) -> None:
    spec = next(spec for spec in EXACT if spec.name == name)
    ids = random_ids(spec, LENGTH)
    runner = load_runner(tiny_path(spec), 2, kv_type="q8")
    ours = logits_of(runner, run_alone(runner, whole(ids)))
    assert diverge(ids, Rounded8Reference(tiny_path(spec))(ids), ours).mean_kl < REMAINDER


@pytest.mark.parametrize("name", ["llama-3-q8", "qwen2-untied-q8", "llama-linear-q8", "qwen2-yarn-q8"])
def test_far_positions_are_as_close_as_near_ones(name: str, tiny_path: TinyPath, load_runner: LoadRunner) -> None:
    spec = next(spec for spec in EXACT if spec.name == name)
    ids = random_ids(spec, CONTEXT)
    far = slice(CONTEXT - LENGTH, None)
    runner = load_runner(tiny_path(spec), 2)
    prompt = Run(ids, [CONTEXT - LENGTH - 1, LENGTH + 1], list(range(pages_for(CONTEXT))))
    ours = logits_of(runner, run_alone(runner, prompt)[far])
    assert diverge(ids[far], RoundedReference(tiny_path(spec))(ids)[far], ours).mean_kl < REMAINDER


def without_biases(suffix: str) -> Callable[[Reference], None]:
    def apply(reference: Reference) -> None:
        tensor = reference.file.tensor
        reference.file.tensor = lambda name: 0 * tensor(name) if name.endswith(suffix) else tensor(name)  # type: ignore[method-assign]

    return apply


def without_sinks(reference: Reference) -> None:
    tensor = reference.file.tensor
    reference.file.tensor = lambda name: tensor(name) - (1e3 if name.endswith("sinks.weight") else 0)  # type: ignore[method-assign]


def rotated(change: Callable[[Rotation], Rotation]) -> Callable[[Reference], None]:
    def apply(reference: Reference) -> None:
        reference.rotation = change(reference.rotation)

    return apply


def changed(**flags: object) -> Callable[[Reference], None]:
    """An oracle of which some numbers are others."""

    def apply(reference: Reference) -> None:
        for name, value in flags.items():
            assert getattr(reference, name) != value
            setattr(reference, name, value)

    return apply


def with_setting(key: str, value: object) -> Callable[[Reference], None]:
    def apply(reference: Reference) -> None:
        setting = reference.file.setting
        reference.file.setting = lambda name, default=None: value if name == key else setting(name, default)  # type: ignore[method-assign,assignment]

    return apply


def without_norms(suffix: str) -> Callable[[Reference], None]:
    def apply(reference: Reference) -> None:
        tensor = reference.file.tensor
        reference.file.tensor = lambda name: 0 * tensor(name) + 1 if name.endswith(suffix) else tensor(name)  # type: ignore[method-assign]

    return apply


def unstretched_everywhere(reference: Reference) -> None:
    reference.rotation = reference.local_rotation


def stretched_everywhere(reference: Reference) -> None:
    reference.local_rotation = reference.rotation


def plain_frequencies(base: float) -> Callable[[Rotation], Rotation]:
    return lambda old: replace(old, frequencies=base ** -(np.arange(len(old.frequencies)) / len(old.frequencies)))


def a_ramp_between_whole_pairs(reference: Reference) -> None:
    architecture, reference.file.architecture = reference.file.architecture, "qwen2"
    setting = reference.file.setting
    reference.file.setting = lambda key, default=None: reference.file.value(f"gpt-oss.{key}", default)  # type: ignore[method-assign]
    reference.rotation = reference.local_rotation = rotation(reference.file, reference.head_dim)
    reference.file.architecture, reference.file.setting = architecture, setting  # type: ignore[method-assign]


MISTAKES = {
    "pairs of the other kind": ("llama-tied-q8", rotated(lambda old: replace(old, interleaved=not old.interleaved))),
    "pairs of the other kind, NeoX": ("qwen2-untied-q8", rotated(lambda old: replace(old, interleaved=not old.interleaved))),
    "no bias": ("qwen2-tied-q8", without_biases(".bias")),
    "no linear scaling": ("llama-linear-q8", rotated(plain_frequencies(10000.0))),
    "no YaRN frequencies": ("qwen2-yarn-q8", rotated(plain_frequencies(10000.0))),
    "no YaRN magnitude": ("qwen2-yarn-q8", rotated(lambda old: replace(old, scale=1.0))),
    "no frequency factors": ("llama-3-q8", rotated(plain_frequencies(500000.0))),
    "no norm of q": ("qwen3-q8", without_norms("attn_q_norm.weight")),
    "no norm of k over all heads": ("olmo2-q8", without_norms("attn_k_norm.weight")),
    "no norm after a block": ("gemma2-q8", without_norms("post_ffw_norm.weight")),
    "no window": ("gemma2-q8", changed(window=0)),
    "a window that is one token wider": ("gemma2-q8", changed(window=10)),
    "no cap on scores": ("gemma2-q8", changed(attn_cap=0.0)),
    "no scale of the embedding": ("gemma-q8", changed(embed_scale=1.0)),
    "no scale of the residuals": ("granite-q8", changed(residual_scale=1.0)),
    "another scale of the scores": ("granite-q8", changed(attn_scale=32**-0.5)),
    "local layers with the rotation of the others": ("gemma3-q8", stretched_everywhere),
    "no YaRN in the other layers": ("olmo3-q8", unstretched_everywhere),
    "LongRoPE's short factors": ("phi4-mini-q8", rotated(plain_frequencies(10000.0))),
    "one expert fewer": ("qwen3moe-q8", with_setting("expert_used_count", 3)),
    "two experts fewer": ("olmoe-q8", with_setting("expert_used_count", 1)),
    "no expert for all": ("granitemoe-q8", without_norms("ffn_down_shexp.weight")),
    "a YaRN ramp between whole pairs": ("gpt-oss-ramp-q8", a_ramp_between_whole_pairs),
    "no sinks": ("gpt-oss-q8", without_sinks),
    "no bias of attention's output": ("gpt-oss-q8", without_biases("attn_output.bias")),
    "no bias of the experts' output": ("gpt-oss-q8", without_biases("ffn_down_exps.bias")),
    "no bias of the experts' gates": ("gpt-oss-q8", without_biases("ffn_gate_exps.bias")),
    "no bias of the choice of experts": ("gpt-oss-q8", without_biases("ffn_gate_inp.bias")),
    "a wider clamp": ("gpt-oss-q8", changed(limit=9.0)),
    "a window in no layer": ("gpt-oss-q8", changed(window=0)),
    "no temperature": ("mistral3-q8", changed(temperature=0.0)),
    "a temperature of another length": ("mistral3-q8", changed(temperature_length=128)),
    "YaRN's whole magnitude": ("mistral3-q8", rotated(lambda old: replace(old, scale=1 + 0.1 * np.log(4)))),
    "RMS norms": ("starcoder2-q8", changed(mean_norms=False)),
    "no biases of the norms": ("starcoder2-q8", without_biases("norm.bias")),
    "no bias before the activation": ("starcoder2-q8", without_biases("ffn_up.bias")),
    "no bias after it": ("starcoder2-q8", without_biases("ffn_down.bias")),
    "no window in any layer": ("starcoder2-window-q8", changed(window=0)),
    "another base": ("llama-wide-q8", rotated(plain_frequencies(11000.0))),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_flag_is_seen(mistake: str, tiny_path: TinyPath, load_runner: LoadRunner) -> None:
    """The inverse control: an oracle with one flag wrong is far outside the bound."""
    name, spoil = MISTAKES[mistake]
    spec = next(spec for spec in EXACT if spec.name == name)
    ids = random_ids(spec, LENGTH)
    wrong = RoundedReference(tiny_path(spec))
    spoil(wrong)
    assert diverge(ids, wrong(ids), engine_logits(load_runner, tiny_path(spec), ids)).mean_kl > MISTAKE


def test_the_bundled_model_is_as_close_to_the_reference_as_llama_cpp(model_path: Path, load_runner: LoadRunner, tmp_path: Path) -> None:
    """The beginning of the first window (prose) and of the last (code); ``bench.quality.accuracy --check`` does all of them."""
    record, positions = accuracy.recorded(model_path), 96
    windows = accuracy.windows(record["tokens"])
    picked = (0, len(windows) - 1)
    stretches = [windows[index][:positions] for index in picked]
    engines = {"ours": lambda ids: engine_logits(load_runner, model_path, ids)}
    ours = accuracy.compare(model_path, stretches, engines, tmp_path)["ours"]
    theirs = [kl for index in picked for kl in record["kl"][index * accuracy.WINDOW :][:positions]]
    assert ours.mean_kl < 1.25 * np.mean(theirs)
    assert ours.top1 > 0.9
