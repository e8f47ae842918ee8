"""What a request of the Fireworks dialect means."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pytest
from tests.support.requests import MINIMAL

from quintet.dialects.base import Identity, Parsed
from quintet.dialects.fireworks import images
from quintet.dialects.fireworks.dialect import Fireworks
from quintet.dialects.fireworks.wire import Options, Shape
from quintet.errors import BadRequest
from quintet.request import CompletionRequest, Guide, GuideKind, Reasoning, Sampling, StopRules

DEFAULTS = replace(MINIMAL, include_usage=True, truncate=True, room=False)
PLAIN = Options(shape=Shape.NONE, top=0, token_ids=False, raw_output=False, perf_metrics=False)
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"maximum": 10**30}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))


def parse(**fields: object) -> Parsed:
    return Fireworks().parse(json.dumps({"prompt": "a", **fields}).encode(), fresh_seed=7)


def test_defaults_are_those_of_the_page() -> None:
    assert parse() == Parsed(DEFAULTS, (), PLAIN)


def test_what_every_engine_can_do_arrives() -> None:
    parsed = parse(
        model="m", prompt=["a", "b"], max_tokens=0, n=2, temperature=0.5, top_p=0.25, seed=9, stop=["x", "y"], stream=True, user="u",
        context_length_exceeded_behavior="error", perf_metrics_in_response=True, echo=True,
    )  # fmt: skip
    assert parsed.request == CompletionRequest(
        model="m",
        prompts=("a", "b"),
        max_tokens=0,
        n=2,
        echo=True,
        logprobs=None,
        sampling=Sampling(0.5, 0.25, 9, seeded=True),
        stop=StopRules(("x", "y")),
        stream=True,
        include_usage=True,
        user="u",
    )
    assert parsed.options == replace(PLAIN, perf_metrics=True)


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"top_k": 50}, {"top_k": 50}),
        ({"min_p": 0.25}, {"min_probability": 0.25}),
        ({"typical_p": 0.5}, {"typical_p": 0.5, "typical_within": True}),
        ({"typical_p": 0}, {"typical_p": 1e-6, "typical_within": True}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repetition_penalty": 0}, {"repetition_penalty": 1e-6}),
        ({"frequency_penalty": -2}, {"frequency_penalty": -2.0}),
        ({"presence_penalty": 2}, {"presence_penalty": 2.0}),
        ({"logit_bias": {"5": -100, "7": 0.5}}, {"logit_bias": ((5, -100.0), (7, 0.5))}),
        ({"mirostat_target": 8}, {"mirostat_target": 3.0}),
        ({"mirostat_target": 5, "mirostat_lr": 0.5}, {"mirostat_target": math.log2(5), "mirostat_lr": 0.5}),
        ({"mirostat_target": 1}, {"temperature": 0.0}),
        ({"mirostat_lr": 0.5}, {}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
    ],
)
def test_sampling_controls_arrive_or_are_refused(fields: dict[str, object], sampling: dict[str, object]) -> None:
    assert parse(**fields).request == replace(DEFAULTS, sampling=replace(DEFAULTS.sampling, **sampling))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "request_", "options"),
    [
        ({"logprobs": False}, {}, {}),
        ({"logprobs": True}, {"logprobs": 0}, {"shape": Shape.CONTENT}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}, {"shape": Shape.CONTENT, "top": 5}),
        ({"logprobs": 0}, {"logprobs": 0}, {"shape": Shape.LISTS}),
        ({"logprobs": 1}, {"logprobs": 1}, {"shape": Shape.LISTS, "top": 1}),
        ({"logprobs": 5.0}, {"logprobs": 5}, {"shape": Shape.LISTS, "top": 5}),
        ({"logprobs": 5, "top_logprobs": 0}, {"logprobs": 0}, {"shape": Shape.LISTS}),
        ({"logprobs": 0, "top_logprobs": 4}, {"logprobs": 4}, {"shape": Shape.LISTS, "top": 4}),
    ],
)
def test_logprobs_is_two_fields_in_one(fields: dict[str, object], request_: dict[str, object], options: dict[str, object]) -> None:
    spelled = (("logprobs", "top_logprobs"),) if "top_logprobs" in fields else ()
    expected = replace(DEFAULTS, spelled=spelled, **request_)  # type: ignore[arg-type]
    assert parse(**fields) == Parsed(expected, (), replace(PLAIN, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "echo", "last", "ids"),
    [
        ({"echo": True}, True, None, False),
        ({"echo_last": 2}, True, 2, False),
        ({"echo": True, "echo_last": 2}, True, 2, False),
        ({"echo": False, "echo_last": 2}, True, 2, False),
        ({"echo": True, "echo_last": 0}, False, None, False),
        ({"return_token_ids": True}, False, None, True),
        ({"raw_output": True, "echo_last": 2}, True, 2, True),
        ({"return_token_ids": True, "echo": True}, True, None, True),
    ],
)
def test_the_prompt_is_echoed_as_far_as_the_client_sees_it_also_where_its_ids_are_asked_for(
    fields: dict[str, object], echo: bool, last: int | None, ids: bool
) -> None:
    """What is echoed is scored, which costs a prefill without the cache."""
    spelled = (("echo", "echo_last"),) if "echo_last" in fields else ()
    assert parse(**fields).request == replace(DEFAULTS, echo=echo, echo_last=last, token_ids=ids, prompt_ids=ids, spelled=spelled)


def test_max_completion_tokens_is_another_name_of_max_tokens() -> None:
    named = (("max_tokens", "max_completion_tokens"),)
    assert parse(max_completion_tokens=3).request == replace(parse(max_tokens=3).request, spelled=named)
    with pytest.raises(BadRequest, match="together with max_tokens"):
        parse(max_completion_tokens=3, max_tokens=3)


@pytest.mark.parametrize(
    ("given", "guide"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Guide(GuideKind.JSON_OBJECT, "", "response_format")),
        ({"type": "json_object", "schema": SCHEMA}, Guide(GuideKind.JSON_SCHEMA, TEXT, "response_format")),
        ({"type": "json_schema", "json_schema": SCHEMA}, Guide(GuideKind.JSON_SCHEMA, TEXT, "response_format")),
        ({"type": "json_schema", "json_schema": json.dumps(SCHEMA)}, Guide(GuideKind.JSON_SCHEMA, TEXT, "response_format")),
        ({"type": "json_schema", "schema": SCHEMA, "grammar": None}, Guide(GuideKind.JSON_SCHEMA, TEXT, "response_format")),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
            Guide(GuideKind.JSON_SCHEMA, TEXT, "response_format"),
        ),
        (
            {"type": "json_schema", "json_schema": {"properties": {}, "schema": {}}},
            Guide(GuideKind.JSON_SCHEMA, '{"properties":{},"schema":{}}', "response_format"),
        ),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, Guide(GuideKind.GRAMMAR, 'root ::= "a"', "response_format")),
    ],
)
def test_response_format_takes_bare_and_wrapped_schemas_and_grammars(given: dict[str, object], guide: Guide | None) -> None:
    assert parse(response_format=given).request == replace(DEFAULTS, guide=guide)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "response_format.type"),
        ({"json_schema": SCHEMA}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "grammar"}, "response_format.grammar"),
        ({"type": "grammar", "grammar": ""}, "response_format.grammar"),
        ({"type": "text", "json_schema": SCHEMA}, "response_format.type"),
        ({"type": "grammar", "grammar": "a", "schema": SCHEMA}, "response_format.type"),
        ({"type": "json_object", "grammar": "a"}, "response_format.grammar"),
        ({"type": "json_schema", "schema": SCHEMA, "json_schema": SCHEMA}, "response_format.schema"),
    ],
)
def test_parts_of_response_format_that_do_not_fit_are_refused(given: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(response_format=given)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "salt"),
    [
        ({"prompt_cache_key": "a"}, "key:a"),
        ({"prompt_cache_isolation_key": "a"}, "isolation:a"),
        ({"prompt_cache_key": "b", "prompt_cache_isolation_key": "a"}, "isolation:a"),
        ({"prompt_cache_key": "", "prompt_cache_isolation_key": ""}, ""),
    ],
)
def test_the_two_cache_keys_never_share_a_cache(fields: dict[str, object], salt: str) -> None:
    assert parse(**fields).request == replace(DEFAULTS, cache_salt=salt)


def test_a_salt_beside_a_cache_key_never_shares_a_cache_with_another_pair() -> None:
    """Each may hold what stands between them."""
    texts = ["", "a", "b", "a/b", "a/vllm:b", "vllm:1:b/", "1:b/isolation:a", "b/isolation:a", "/isolation:a"]
    pairs = [
        {name: key, "cache_salt": salt}
        for name in ("prompt_cache_isolation_key", "prompt_cache_key")
        for key in texts[1:]
        for salt in texts
    ]
    pairs += [{"cache_salt": salt} for salt in texts]
    assert len({parse(**pair).request.cache_salt for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"reasoning_effort": "none"}, 0),
        ({"reasoning_effort": False}, 0),
        ({"reasoning_effort": "low"}, 3000),
        ({"reasoning_effort": True}, 12000),
        ({"reasoning_effort": 77}, 77),
        *(({"reasoning_effort": many}, 2**31 - 1) for many in (2**31 - 1, 2**31, 2**64, 10**100)),
        ({"thinking": {"type": "disabled"}}, 0),
        ({"thinking": {"type": "enabled"}}, 12000),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1024),
        *(({"thinking": {"type": "enabled", "budget_tokens": many}}, 2**31 - 1) for many in (2**31 - 1, 2**31, 2**64, 10**100)),
    ],
)
def test_reasoning_is_a_number_of_tokens_that_the_engine_takes(fields: dict[str, object], tokens: int) -> None:
    assert parse(**fields).request == replace(DEFAULTS, reasoning=Reasoning(tokens, next(iter(fields))))


def test_a_number_of_thousands_of_digits_is_not_repeated_in_the_error() -> None:
    with pytest.raises(BadRequest) as caught:
        parse(max_tokens=1, max_completion_tokens=10**4200)
    assert caught.value.param == "max_completion_tokens"
    assert len(str(caught.value)) < 200


def test_thinking_and_reasoning_effort_exclude_each_other() -> None:
    with pytest.raises(BadRequest, match="together with reasoning_effort"):
        parse(thinking={"type": "disabled"}, reasoning_effort="low")


@pytest.mark.parametrize("kind", ["enabled", "disabled"])
@pytest.mark.parametrize("budget", ["x", 5, True])
def test_a_budget_of_thinking_is_checked_whether_or_not_it_is_used(kind: str, budget: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(thinking={"type": kind, "budget_tokens": budget})
    assert caught.value.param == "thinking.budget_tokens"


def test_hints_change_nothing() -> None:
    assert parse(metadata={"a": "b"}, service_tier="flex", reasoning_history="preserved") == parse()
    # SDK: "Only "priority" is supported, while all other values will be treated as "default" tier."
    assert parse(service_tier="scale") == parse()


def test_a_prediction_is_a_text_or_ids_and_has_one_of_two_names() -> None:
    assert parse(prediction="a b").request == replace(DEFAULTS, prediction="a b")
    assert parse(speculation=[1, 2]).request == replace(DEFAULTS, prediction=(1, 2), spelled=(("prediction", "speculation"),))
    assert parse(speculation="a").request == replace(DEFAULTS, prediction="a", spelled=(("prediction", "speculation"),))
    assert parse(speculation=[]).request == DEFAULTS
    with pytest.raises(BadRequest, match="together with speculation"):
        parse(prediction="a", speculation="a")


def test_what_mirostat_stands_for_is_named() -> None:
    """``mirostat_target`` switches the filters off: not in silence."""
    both = parse(mirostat_target=4, top_k=50, top_p=0.9, min_p=0.1, typical_p=0.5, temperature=0.7)
    assert both.unheeded == ("top_k", "typical_p", "top_p", "min_p")
    assert parse(mirostat_target=4, top_n_sigma=1, xtc_probability=0.5).unheeded == ("top_n_sigma", "xtc_probability")
    assert parse(mirostat_target=4, top_k=0, top_p=1, min_p=0, typical_p=1).unheeded == ()
    assert parse(top_k=50, top_p=0.9).unheeded == ()
    assert parse(mirostat_target=4, top_k=50, temperature=0).unheeded == (), "greedy is greedy with or without either"


def test_data_urls_are_counted_however_their_scheme_is_written_and_other_urls_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_BASE64", 60)
    url, link = "data:image/png;base64,AAAAAAAA", "https://example.org/" + "a" * 100
    assert len(url) == 30
    assert len(parse(images=[url, url[:-1], link]).request.images[0]) == 3
    for several in ([url, url], [url, url.replace("data", "DATA")]):
        with pytest.raises(BadRequest, match="must be less than 60 bytes of data URLs in all"):
            parse(images=several)


def test_fields_of_other_providers_are_named_and_have_no_effect() -> None:
    parsed = parse(best_of=3, suffix="s", stream_options={})
    assert parsed.ignored == ("best_of", "suffix")
    assert parsed.request == DEFAULTS


def test_the_renderer_takes_only_its_own_options() -> None:
    with pytest.raises(TypeError):
        Fireworks().renderer(DEFAULTS, Identity(id="0", created=1, model="m", fingerprint="fp"), None)


def test_images_are_dealt_out_to_tens_of_thousands_of_prompts_in_time() -> None:
    prompts = ["<image>", *[""] * 60_000, "<image>"]
    begun = time.process_time()
    images = parse(prompt=prompts, images=["data:,a", "data:,b"]).request.images
    assert time.process_time() - begun < 3
    assert [[image.url for image in images[at]] for at in (0, 1, -1)] == [["data:,a"], [], ["data:,b"]]
