"""A key that is missing in config.json, or null, means what transformers takes it for, or is refused by its name; never another model."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest
from tests.reference.transformers_tiny import MISSING

from quintet.errors import ModelError
from quintet.models.folder.config import Outline, read_outline
from quintet.models.folder.kinds import KINDS

NEEDED = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}
NEEDED |= {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "head_dim"}
"""Sizes, which transformers writes into every file: without one it may be refused."""


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(MISSING.read_text())["models"]
    return found


CASES = [(name, way, key) for name, entry in recorded().items() for way in ("missing", "null") for key in entry[way]]


def meaning(document: dict[str, Any]) -> dict[str, Any] | str:
    """All that ``document`` says, or why it is refused."""
    try:
        outline = read_outline(document)
    except ModelError as error:
        return str(error)
    said = {key: getattr(outline, key) for key in Outline.__slots__ if key not in ("kind", "metadata")}
    return {**said, **{key: outline.metadata.get(key) for key in outline.metadata}}


@pytest.mark.parametrize("name", recorded())
def test_what_transformers_writes_is_understood(name: str) -> None:
    assert isinstance(meaning(recorded()[name]["config"]), dict)


@pytest.mark.parametrize(("name", "way", "key"), CASES, ids=lambda value: str(value))
def test_without_a_key_a_file_means_what_transformers_makes_of_it(name: str, way: str, key: str) -> None:
    entry = recorded()[name]
    config = copy.deepcopy(entry["config"])
    *above, last = key.split(".")
    inner = config
    for one in above:
        inner = inner[one]
    if way == "null":
        inner[last] = None
    else:
        del inner[last]
    got, want = meaning(config), meaning({**entry["config"], **entry[way][key]})
    if isinstance(got, str):
        assert last in NEEDED or isinstance(want, str) or f"{key}'" in got
    else:
        assert got == want


def test_every_model_type_is_recorded() -> None:
    assert {entry["config"]["model_type"] for entry in recorded().values()} == {name for name, kind in KINDS.items() if not kind.section}


GEMMA_2 = {"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
GEMMA_2 |= {"num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64, "vocab_size": 100}


def said(document: dict[str, Any]) -> dict[str, Any]:
    found = meaning(document)
    assert isinstance(found, dict), found
    return found


def test_a_cap_that_is_null_is_none_and_one_that_is_missing_is_the_familys() -> None:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    for key, usual in caps.items():
        assert said(GEMMA_2)[f"gemma2.{key}"] == usual
        assert said({**GEMMA_2, key: None})[f"gemma2.{key}"] == 0


def test_a_window_that_is_null_is_none_where_the_family_may_have_none_and_refused_where_it_must_have_one() -> None:
    mistral = {**GEMMA_2, "model_type": "mistral", "max_position_embeddings": 8192}
    assert said(mistral)["windows"] == (4096, 4096)
    assert said({**mistral, "sliding_window": None})["windows"] == ()
    assert meaning({**GEMMA_2, "sliding_window": None}) == "config.json: 'sliding_window' is missing."
    for none in (
        {**GEMMA_2, "sliding_window": None, "layer_types": ["full_attention"] * 2},
        GEMMA_2,
    ):  # nothing is ever out of the latter's
        assert said(none)["gemma2.attention.sliding_window"] == 0
    assert said({**GEMMA_2, "max_position_embeddings": 8192})["gemma2.attention.sliding_window"] == 4096


def test_a_scale_of_yarns_that_is_0_is_none_as_one_that_is_missing() -> None:
    """Devstral 2 says so of two: transformers asks whether both of the first two are true, and adds the third times a logarithm."""
    plain = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 64.0, "original_max_position_embeddings": 4096}
    full = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}

    def rotated(scales: dict[str, float]) -> dict[str, Any]:
        return said({**GEMMA_2, "model_type": "ministral3", "rope_parameters": {**plain, **scales}})

    none = rotated({})
    assert "mistral3.attention.temperature_scale" not in none and none["mistral3.rope.scaling.attn_factor"] == 1.0
    assert rotated(dict.fromkeys(full, 0.0)) == rotated({**full, "mscale_all_dim": 0, "llama_4_scaling_beta": 0}) == none
    assert rotated({**full, "mscale": 0.0, "llama_4_scaling_beta": 0.0}) == none != rotated({**full, "llama_4_scaling_beta": 0.0})
    for key in full:
        wrong = {**GEMMA_2, "model_type": "ministral3", "rope_parameters": {**plain, key: -1.0}}
        assert f"'rope_parameters.{key}' must be a finite number above 0, got -1.0" in meaning(wrong)


def test_the_language_model_of_one_that_sees_images_has_the_defaults_of_the_type_that_it_names() -> None:
    text = {**{key: value for key, value in GEMMA_2.items() if key != "model_type"}, "max_position_embeddings": 8192}
    for type_, windows, scaling in ((None, (4096, 4096), None), ("mistral", (4096, 4096), None), ("ministral3", (), "yarn")):
        found = said({"model_type": "mistral3", "text_config": {**text, "model_type": type_}})
        assert (found["windows"], found.get("mistral3.rope.scaling.type")) == (windows, scaling)
    assert meaning({"model_type": "mistral3", "text_config": {**text, "model_type": "qwen2"}}) == (
        "config.json: 'text_config.model_type' must be mistral or ministral3 in this family, got 'qwen2'."
    )


def test_sizes_that_a_language_model_inside_another_file_leaves_out_are_those_of_its_type() -> None:
    """transformers writes such a part as what it has beside its class: SmolVLM's 2.2B has no heads, Idefics3's 8B no width."""
    taken = ("context_length", "embedding_length", "feed_forward_length", "block_count", "attention.head_count", "attention.head_count_kv")
    sizes = {
        ("smolvlm", "llama"): (2048, 4096, 11008, 32, 32, 32),
        ("idefics3", "llama"): (2048, 4096, 11008, 32, 32, 32),
        ("mistral3", "mistral"): (131072, 4096, 14336, 32, 32, 8),
        ("mistral3", "ministral3"): (262144, 4096, 14336, 34, 32, 8),
    }
    for (type_, inner), want in sizes.items():
        found = said({"model_type": type_, "text_config": {"model_type": inner}})
        assert tuple(found[f"{found['general.architecture']}.{key}"] for key in taken) == want
    assert meaning({"model_type": "smolvlm"}) == "config.json: 'text_config' is missing."
