"""What an engine lacks is refused by name, each control and feature by itself; no control can be forgotten."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from quintet.errors import BadRequest, Unsupported
from quintet.inputs import supported
from quintet.inputs.capabilities import EVERYTHING, Capabilities, Control, Feature, Supported
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.resolve import Known, resolve
from quintet.inputs.sequence import SequenceSpec
from quintet.inputs.supported import require_supported
from quintet.inputs.think_tags import Tags
from quintet.request import Cut, Dry, Guide, GuideKind, Image, Reasoning, Sampling

OFF = SequenceSpec((1, 2), 4, Sampling(1.0, 1.0, 5), None, echo=False)
ON: dict[Control, dict[str, Any]] = {
    Control.TEMPERATURE: {"temperature": 0.7},
    Control.TOP_P: {"top_p": 0.9},
    Control.SEED: {"seeded": True},
    Control.TOP_K: {"top_k": 3},
    Control.MIN_P: {"min_p": 0.1},
    Control.MIN_PROBABILITY: {"min_probability": 0.1},
    Control.TYPICAL_P: {"typical_p": 0.5},
    Control.TOP_N_SIGMA: {"top_n_sigma": 1.0},
    Control.XTC: {"xtc_probability": 0.5},
    Control.REPETITION_PENALTY: {"repetition_penalty": 1.1},
    Control.FREQUENCY_PENALTY: {"frequency_penalty": -0.5},
    Control.PRESENCE_PENALTY: {"presence_penalty": 0.5},
    Control.DRY: {"dry": Dry(multiplier=0.8)},
    Control.MIROSTAT: {"mirostat_target": 5.0},
    Control.LOGIT_BIAS: {"logit_bias": ((5, 1.0),)},
    Control.ALLOWED_TOKEN_IDS: {"allowed_token_ids": (5,)},
    Control.BAD_WORDS: {"bad_words": ("x",)},
    Control.MIN_TOKENS: {"min_tokens": -1},
    Control.IGNORE_EOS: {"ignore_eos": True},
    Control.STOP_TOKEN_IDS: {"stop_token_ids": (5,)},
}
PARTS = {"seed", "xtc_threshold", "mirostat_lr", "typical_within"}
"""Fields of ``Sampling`` that only shape what another one turns on."""


def having(supported: Supported) -> Capabilities:
    return Capabilities(
        model="m", context=20, vocab=300, pieces=[b""] * 300, max_logprobs=5, max_sequences=4, fingerprint="f", supported=supported
    )


def refusal(spec: SequenceSpec, supported: Supported) -> BadRequest:
    require_supported([OFF, spec], having(EVERYTHING))
    with pytest.raises(Unsupported) as caught:
        require_supported([OFF, spec], having(supported))
    assert "is not supported by the engine of m" in str(caught.value)
    return caught.value


def test_every_field_of_sampling_is_a_control_or_a_part_of_one() -> None:
    assert {field.name for field in fields(Sampling)} == {control.value for control in Control} | PARTS
    assert set(ON) == set(Control)


@pytest.mark.parametrize("control", Control)
def test_a_control_that_is_lacking_is_refused_where_it_is_turned_on_and_only_there(control: Control) -> None:
    lacking = replace(EVERYTHING, controls=EVERYTHING.controls - {control})
    others = {name: value for other in Control if other is not control for name, value in ON[other].items()}
    require_supported([OFF, replace(OFF, sampling=replace(OFF.sampling, **others))], having(lacking))
    assert refusal(replace(OFF, sampling=replace(OFF.sampling, **ON[control])), lacking).param == control.param


def test_what_is_off_needs_no_control_at_all_and_greedy_neither() -> None:
    none = Supported(frozenset(), frozenset(), frozenset())
    shaped = replace(OFF.sampling, xtc_threshold=0.3, mirostat_lr=0.2, dry=Dry(base=2.0, breakers=()), seed=9)
    for sampling in (shaped, replace(shaped, temperature=0.0)):
        require_supported([replace(OFF, sampling=sampling)], having(none))


@pytest.mark.parametrize(
    ("feature", "change", "param"),
    [
        (Feature.LOGPROBS, {"logprobs": 0}, "logprobs"),
        (Feature.LOGPROBS, {"logprobs": 0, "spelled": (("logprobs", "best_of"),)}, "best_of"),
        (Feature.ECHO, {"echo": True}, "echo"),
        (Feature.PROMPT_LOGPROBS, {"echo": True, "logprobs": 1}, "echo"),
    ],
)
def test_a_feature_that_is_lacking_is_refused_by_the_field_that_asked_for_it(feature: Feature, change: dict[str, Any], param: str) -> None:
    lacking = replace(EVERYTHING, features=EVERYTHING.features - {feature})
    assert refusal(replace(OFF, **change), lacking).param == param
    require_supported([OFF], having(lacking))


def test_log_probabilities_of_the_prompt_are_another_thing_than_its_echo() -> None:
    lacking = having(replace(EVERYTHING, features=EVERYTHING.features - {Feature.PROMPT_LOGPROBS}))
    require_supported([replace(OFF, echo=True), replace(OFF, logprobs=5)], lacking)


@pytest.mark.parametrize("kind", GuideKind)
def test_each_kind_of_guide_is_lacking_by_itself(kind: GuideKind) -> None:
    lacking = replace(EVERYTHING, guides=EVERYTHING.guides - {kind})
    assert refusal(replace(OFF, guide=Guide(kind, "", "response_format")), lacking).param == "response_format"
    require_supported([replace(OFF, guide=Guide(other, "", "p")) for other in GuideKind if other is not kind], having(lacking))


def test_a_suffix_needs_an_engine_that_ends_at_given_tokens() -> None:
    assert refusal(replace(OFF, suffix="s"), replace(EVERYTHING, controls=EVERYTHING.controls - {Control.STOP_TOKEN_IDS})).param == "suffix"


def test_a_thinking_budget_is_refused_only_where_the_model_thinks_and_the_engine_cannot_end_it() -> None:
    asked, tags = replace(OFF, reasoning=Reasoning(0, "thinking")), Tags(b"<t>", b"</t>", (1,))
    lacking = having(replace(EVERYTHING, features=EVERYTHING.features - {Feature.THINKING_BUDGET}))
    assert resolve([asked], Known({}), lacking)[0].thinking is None
    assert resolve([OFF], Known({}, tags=tags), lacking)[0].thinking is not None
    with pytest.raises(Unsupported) as caught:
        resolve([asked], Known({}, tags=tags), lacking)
    assert caught.value.param == "thinking"


def test_images_need_a_model_that_sees_them() -> None:
    asked = replace(OFF, images=(Image("data:image/png;base64,AAAA", "images[0]"),))
    with pytest.raises(Unsupported) as caught:
        require_supported([OFF, asked], having(EVERYTHING))
    assert caught.value.param == "images"
    seeing = replace(having(EVERYTHING), images=ImageTraits("gemma3", 896, 896, 256))
    require_supported([asked], seeing)
    with pytest.raises(BadRequest) as refused:
        require_supported([replace(asked, cut=Cut(5))], seeing)
    assert "images" in str(refused.value)


def test_what_all_prompts_and_samples_of_a_request_ask_alike_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a thousand of them, and the event loop waits."""
    looked = list[SequenceSpec]()
    monkeypatch.setattr(supported, "_check", lambda spec, _: looked.append(spec))
    prompts = [replace(OFF, prompt=(number,), number=number) for number in range(3)]
    samples = [replace(prompt, sampling=replace(OFF.sampling, seed=seed)) for prompt in prompts for seed in range(3)]
    require_supported(samples, having(EVERYTHING))
    assert len(looked) == 1
