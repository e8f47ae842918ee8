"""What a request of the OpenAI dialect means."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.requests import MINIMAL

from quintet.dialects.openai.dialect import KNOWN, OpenAI
from quintet.errors import BadRequest
from quintet.request import CompletionRequest, Sampling, StopRules


def parse(**fields: object) -> CompletionRequest:
    return OpenAI().parse(json.dumps(fields).encode(), fresh_seed=7).request


def test_defaults_are_those_of_the_page() -> None:
    assert parse() == replace(MINIMAL, prompts=("",))


def test_every_field_arrives() -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    request = parse(
        model="m", prompt=["a", "b"], max_tokens=0, n=2, echo=True, logprobs=5, temperature=0.5, top_p=0.25, seed=9, stop=["x", "y"],
        stream=True, stream_options=options, user="u", suffix="s", best_of=2,
    )  # fmt: skip
    assert request == CompletionRequest(
        model="m", prompts=("a", "b"), max_tokens=0, n=2, echo=True, logprobs=5, sampling=Sampling(0.5, 0.25, 9, seeded=True),
        stop=StopRules(("x", "y")), stream=True, include_usage=True,
        user="u", best_of=2, suffix="s",
    )  # fmt: skip


def test_best_of_is_n_unless_it_says_more() -> None:
    assert [parse(**fields).best_of for fields in ({}, {"n": 3}, {"n": 3, "best_of": 3}, {"best_of": 5}, {"best_of": None, "n": 2})] == [
        *(1, 3, 3, 5, 2)
    ]
    assert parse(n=2, best_of=2, stream=True).best_of == 2


def test_lists_of_stop_strings_longer_than_the_page_has_them_are_taken() -> None:
    """lm-eval and Continue shorten theirs for OpenAI's own host only."""
    assert len(parse(stop=[str(number) for number in range(32)]).stop.strings) == 32


@pytest.mark.fault("A03")
@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", ""], ("a", "")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        ([[1.0, 2]], ((1, 2),)),
        ("\0\u00e9\U0001f600", ("\0\u00e9\U0001f600",)),
    ],
)
def test_the_four_prompt_forms(sent: object, prompts: object) -> None:
    request = parse(prompt=sent)
    assert request.prompts == prompts
    assert all(type(token) is int for prompt in request.prompts if isinstance(prompt, tuple) for token in prompt)


@pytest.mark.fault("A10")
@pytest.mark.parametrize(("sent", "seed"), [(0, 0), (2**64 - 1, 2**64 - 1), (2**63, 2**63), (-1, 2**64 - 1), (-(2**63), 2**63), (3.0, 3)])
def test_a_seed_is_exact_and_taken_modulo_2_64(sent: object, seed: int) -> None:
    assert parse(seed=sent).sampling.seed == seed


@pytest.mark.fault("A07")
@pytest.mark.parametrize("sent", [{"top_p": 0}, {"top_p": 1e-300}, {"temperature": 0}, {"temperature": 5e-324}, {"temperature": -0.0}])
def test_what_leaves_only_the_likeliest_token_is_greedy(sent: dict[str, float]) -> None:
    assert parse(**sent).sampling == Sampling(0.0, 1.0, 7)


@pytest.mark.fault("A17", "B01", "B02", "B03")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {}, "stream": False}, "stream_options"),
        ({"logit_bias": {"50256": -101}}, "logit_bias.50256"),
        ({"best_of": 2, "stream": True}, "best_of"),
    ],
)
def test_rules_over_several_fields(fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    assert caught.value.param == param


def test_bias_and_penalties_reach_the_sampler() -> None:
    sampling = parse(logit_bias={"7": -100, "3": 1.5}, frequency_penalty=0.25, presence_penalty=-2).sampling
    assert (sampling.logit_bias, sampling.frequency_penalty, sampling.presence_penalty) == (((7, -100.0), (3, 1.5)), 0.25, -2.0)


def test_neutral_values_are_the_same_as_none() -> None:
    assert parse(logit_bias={}, frequency_penalty=0, presence_penalty=-0.0, suffix="") == parse()


@pytest.mark.fault("A25")
def test_unknown_fields_are_named_in_printable_ascii() -> None:
    body = {"echo_last": 1, "a\r\nb": 2, "\u00e9": 3, "k" * 100: 4, "stream": True, "stream_options": {"x": 1}}
    ignored = OpenAI().parse(json.dumps(body).encode(), 7).ignored
    assert ignored[:3] == ("echo_last", "a\\r\\nb", "\\xe9")
    assert ignored[4] == "stream_options.x"
    assert all(name.isascii() and name.isprintable() and len(name) <= 80 for name in ignored)


@pytest.mark.fault("A25")
def test_a_member_that_is_written_as_a_key_of_the_body_is_unknown() -> None:
    """Nothing reads it there."""
    for name in (field.name for field in KNOWN if "." in field.name):
        assert OpenAI().parse(json.dumps({"prompt": "a", name: "json_object"}).encode(), 7).ignored == (name,)
