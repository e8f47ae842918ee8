"""What other servers' clients ask an answer to tell beyond the page: in every dialect, JSON and stream, against what is known of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.server.asgi import Answer, acall, call
from tests.server.documents import completions
from tests.server.goldens import chunks
from tests.server.one import create_app
from tests.server.scripted import FIRST_WORD, ScriptedBackend
from tests.server.test_infill_route import BOS, ask
from tests.server.toy import toy_app

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.fields import Status

ASKED: dict[str, Any] = {"prompt": "Once upon", "max_tokens": 8, "temperature": 1.0, "seed": 7}
_OWN = {
    name for name, one in PROVIDERS.items() if ("return_token_ids", Status.DONE) in {(field.name, field.status) for field in one.fields}
}
WITH_IDS = [name for name in PROVIDERS if name not in _OWN]


def posted(dialect: str, *bodies: dict[str, Any]) -> list[Answer]:
    async def ask() -> list[Answer]:
        async with toy_app(dialect) as app:
            return [await acall(app, json.dumps({**ASKED, **body}).encode()) for body in bodies]

    return asyncio.run(ask())


def only(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    (choice,) = answer.json()["choices"]
    found: dict[str, Any] = choice
    return found


def refused(answer: Answer) -> str:
    assert answer.status == 400
    return answer.body.decode()


@pytest.mark.parametrize("dialect", WITH_IDS)
def test_token_ids_are_those_of_the_text_and_a_stream_joins_to_the_same(dialect: str) -> None:
    body, stream, plain = posted(dialect, {"return_token_ids": True}, {"return_token_ids": True, "stream": True}, {})
    choice = only(body)
    assert bytes(choice["prompt_token_ids"]).decode() == ASKED["prompt"]
    assert bytes(choice["token_ids"]).decode() == choice["text"] == only(plain)["text"]
    parts = [one for chunk in chunks(stream.body) for one in chunk["choices"]]
    assert [one["prompt_token_ids"] for one in parts if "prompt_token_ids" in one] == [choice["prompt_token_ids"]]
    assert "prompt_token_ids" in parts[0]
    assert [token for one in parts for token in one["token_ids"]] == choice["token_ids"]
    assert [one["stop_reason"] for one in parts if "stop_reason" in one] == [choice["stop_reason"]] == [None]
    assert not {"token_ids", "prompt_token_ids", "stop_reason"} & only(plain).keys(), "nothing is told to those who do not ask"


@pytest.mark.parametrize("dialect", WITH_IDS)
def test_a_token_that_a_stop_string_cut_in_two_is_counted_and_has_no_id(dialect: str) -> None:
    """Its id would stand for more than is shown: Novita shows the stop string, and all others what stands before it."""
    app = create_app(ScriptedBackend(words=(b" the", b" cat")), ServerConfig(dialect=dialect))
    asked = {"prompt": "a", "stop": ["ca"], "return_token_ids": True}
    choice = only(call(app, asked))
    assert (choice["text"], choice["token_ids"]) == (" the ca" if dialect == "novita" else " the ", [FIRST_WORD])
    made = chunks(call(app, {**asked, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}).body)
    parts = [one for chunk in made for one in chunk["choices"]]
    assert "".join(one.get("text", "") for one in parts) == choice["text"]
    assert [token for one in parts for token in one["token_ids"]] == [FIRST_WORD]
    assert [chunk["usage"]["completion_tokens"] for chunk in made if "".join(one.get("text", "") for one in chunk["choices"])] == [1, 2]


@pytest.mark.parametrize("dialect", WITH_IDS)
def test_of_token_ids_scores_and_usage_only_that_is_told_which_was_asked_for(dialect: str) -> None:
    usage = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    ids, scores, told_ids, told_usage = posted(
        dialect, {"return_token_ids": True}, {"prompt_logprobs": 1}, {"return_token_ids": True, "stream": True}, usage
    )
    names = {"token_ids", "prompt_token_ids", "prompt_logprobs"}
    assert names & only(ids).keys() == {"token_ids", "prompt_token_ids"} and names & only(scores).keys() == {"prompt_logprobs"}
    assert not any(names & one.keys() for chunk in chunks(told_usage.body) for one in chunk["choices"])
    assert not any(chunk.get("usage") for chunk in chunks(told_ids.body)[:-1]), "a provider's own is in its last"


def test_in_together_a_chunk_has_the_id_of_its_own_token_though_half_a_character_waits_for_the_other() -> None:
    app = create_app(ScriptedBackend(words=(b" \xe2\x82", b"\xac", b" cat")), ServerConfig(dialect="together"))
    made = chunks(call(app, {"prompt": "a", "max_tokens": 9, "return_token_ids": True, "stream": True}).body)
    told = [(chunk["choices"][0]["token_ids"], chunk["token"]["id"]) for chunk in made]
    assert all(ids == [id_] for ids, id_ in told) and [id_ for _, id_ in told[:3]] == [FIRST_WORD, FIRST_WORD + 1, FIRST_WORD + 2]


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_who_reaches_the_models_own_end_is_told_of_no_stop_string(dialect: str) -> None:
    app = create_app(ScriptedBackend(words=(b" the",)), ServerConfig(dialect=dialect))
    choice = only(call(app, {"prompt": "a", "max_tokens": 9, "prompt_logprobs": 1}))
    assert (choice["finish_reason"], choice["stop_reason"]) == ("eos" if dialect == "together" else "stop", None)


def test_each_of_several_choices_has_its_own() -> None:
    (answer,) = posted("openai", {"prompt": ["ab", "c"], "n": 2, "return_token_ids": True})
    choices = answer.json()["choices"]
    assert [bytes(one["prompt_token_ids"]).decode() for one in choices] == ["ab", "ab", "c", "c"]
    assert all(bytes(one["token_ids"]).decode() == one["text"] for one in choices)


def test_an_echo_and_lists_stay_as_they_are() -> None:
    asked = {"echo": True, "logprobs": 2, "max_tokens": 3}
    plain, more = posted("openai", asked, {**asked, "return_token_ids": True, "prompt_logprobs": 4})
    known = only(plain)
    assert {name: only(more)[name] for name in known} == known


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_a_prompts_log_probabilities_are_those_of_its_echo(dialect: str) -> None:
    asked: dict[str, Any] = {"prompt_logprobs": 2, "max_tokens": 2}
    (answer,), (echoed,) = posted(dialect, asked), posted("openai", {"echo": True, "logprobs": 2, "max_tokens": 1})
    scores, lists = only(answer)["prompt_logprobs"], only(echoed)["logprobs"]
    assert len(scores) == len(ASKED["prompt"]) and scores[0] is None
    for at, (entry, letter) in enumerate(zip(scores[1:], ASKED["prompt"][1:], strict=True), 1):
        assert {one["decoded_token"]: one["logprob"] for one in entry.values()} == lists["top_logprobs"][at]
        assert entry[str(ord(letter))]["logprob"] == lists["token_logprobs"][at]
        likeliest_first = sorted(entry.values(), key=lambda one: -one["logprob"])
        assert [one["rank"] for one in likeliest_first] == [1, 2, None][: len(likeliest_first)]


@pytest.mark.parametrize("dialect", WITH_IDS)
def test_no_chunk_is_added_for_a_prompts_ids(dialect: str) -> None:
    plain, told = posted(dialect, {"stream": True}, {"stream": True, "return_token_ids": True})
    assert len(chunks(told.body)) == len(chunks(plain.body))


@pytest.mark.parametrize("padded", [True, False])
def test_chunks_that_tell_more_are_obfuscated_only_if_they_would_be_without(padded: bool) -> None:
    asked = {"return_token_ids": True, "stream": True, "stream_options": {"include_obfuscation": padded}}
    made = chunks(posted("openai", asked)[0].body)
    assert [bool(chunk.get("obfuscation")) for chunk in made] == [padded] * len(made)


def test_samples_of_a_prompt_share_its_log_probabilities_and_generated_tokens_keep_their_own_number() -> None:
    (answer,) = posted("openai", {"prompt": ["ab", "ab", "cd"], "n": 2, "prompt_logprobs": 5, "logprobs": 1})
    choices = answer.json()["choices"]
    scores = [one["prompt_logprobs"] for one in choices]
    assert scores[0] == scores[1] == scores[2] == scores[3] != scores[4] == scores[5]
    assert all(len(top) <= 2 for one in choices for top in one["logprobs"]["top_logprobs"])


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_given_tokens_have_the_log_probabilities_that_they_have_among_the_likeliest(dialect: str) -> None:
    likeliest = only(posted("openai", {"logprobs": 5, "return_tokens_as_token_ids": True})[0])["logprobs"]["top_logprobs"]
    wanted = [int(name.removeprefix("token_id:")) for name in {name for top in likeliest for name in top}]
    asked = {"logprobs": 1, "logprob_token_ids": [*wanted, wanted[0]], "return_tokens_as_token_ids": True}  # each once
    lists = only(posted(dialect, asked)[0])["logprobs"]
    assert all(name.startswith("token_id:") for name in lists["tokens"])
    if isinstance(lists["top_logprobs"], dict):  # Together's one map has the highest value of each
        for name in {name for top in likeliest for name in top}:
            assert lists["top_logprobs"][name] >= max(top[name] for top in likeliest if name in top)
        return
    for top, known in zip(lists["top_logprobs"], likeliest, strict=True):
        assert len(top) == len(wanted) and known.items() <= top.items()


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_given_tokens_are_told_also_with_logprobs_0_in_a_body_and_in_a_stream(dialect: str) -> None:
    asked = {"logprobs": 0, "logprob_token_ids": [5, 6], "return_tokens_as_token_ids": True, "max_tokens": 3}
    body, stream = posted(dialect, asked, {**asked, "stream": True})
    lists, parts = only(body)["logprobs"], [one for chunk in chunks(stream.body) for one in chunk["choices"]]
    if dialect == "together":  # whose chunks are a token each
        maps = [*lists["token_top_logprobs"], *(one["top_logprobs"] for one in parts)]
    else:
        maps = [*lists["top_logprobs"], *(top for one in parts if one.get("logprobs") for top in one["logprobs"]["top_logprobs"])]
    assert len(maps) == 6 and all({"token_id:5", "token_id:6"} <= top.keys() for top in maps)


@pytest.mark.parametrize("top", [None, 1])
def test_given_tokens_are_told_in_fireworks_newer_shape_whatever_top_logprobs_says(top: int | None) -> None:
    asked = {"logprobs": True, "top_logprobs": top, "logprob_token_ids": [5, 6, 7], "max_tokens": 2, "echo": True, "raw_output": True}
    choice = only(posted("fireworks", asked)[0])
    *echoed, first, second = choice["logprobs"]["content"]
    assert [len(one["top_logprobs"]) for one in echoed[1:]] == [top or 0] * (len(ASKED["prompt"]) - 1)
    for entry in (first, second, *choice["raw_output"]["completion_logprobs"]["content"]):
        assert {one["token_id"] for one in entry["top_logprobs"]} == {5, 6, 7}


def test_each_field_decides_how_many_alternatives_its_own_tokens_have() -> None:
    """Those of echoed tokens are ``logprobs``'s, of scored ones ``prompt_logprobs``'s, and given ones are of generated tokens alone."""
    for logprobs, scored, given in ((5, 2, 0), (1, 4, 0), (5, 0, 0), (2, 3, 7), (3, 1, 2), (None, 3, 0)):
        ids = {"logprob_token_ids": list(range(97, 97 + given))} if given else {}
        asked = {"echo": True, "logprobs": logprobs, "prompt_logprobs": scored, "max_tokens": 2, **ids}
        plain, ranked = posted("openai", asked, {**asked, "best_of": 2})
        for choice in (only(plain), only(ranked)):
            assert {len(one) for one in choice["prompt_logprobs"][1:]} <= {max(scored, 1), scored + 1}
            if logprobs is not None:
                tops, border = choice["logprobs"]["top_logprobs"], len(ASKED["prompt"])
                assert {len(one) for one in tops[1:border]} <= {logprobs, logprobs + 1}
                assert {len(one) for one in tops[border:]} <= {given or logprobs, (given or logprobs) + 1} and tops[border:]


def test_what_ended_a_choice_is_told_beside_given_tokens_too() -> None:
    choice = only(posted("openai", {"logprobs": 1, "logprob_token_ids": [5]})[0])
    assert choice["stop_reason"] is None, "and there"


def test_the_tokens_of_a_stop_string_count_in_the_usage_of_the_chunk_that_ends_the_choice() -> None:
    text = only(posted("openai", {})[0])["text"]
    asked = {"stop": [text[3:5]], "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *_, end, last = chunks(posted("openai", asked)[0].body)
    assert end["choices"][0]["finish_reason"] == "stop"
    assert end["usage"]["completion_tokens"] == last["usage"]["completion_tokens"] == 5


def test_a_token_that_the_client_named_stops_the_text_and_is_no_eos_in_together() -> None:
    token = ord(only(posted("together", {})[0])["text"][4])
    body, stream = posted("together", {"stop_token_ids": [token]}, {"stop_token_ids": [token], "stream": True})
    assert (only(body)["finish_reason"], only(body)["stop_reason"]) == ("stop", token)
    assert chunks(stream.body)[-1]["finish_reason"] == "stop"


def test_the_end_goes_with_the_last_token_in_together_also_where_the_context_ends() -> None:
    made = chunks(posted("together", {"prompt": "a" * 4090, "max_tokens": None, "stream": True})[0].body)
    assert [chunk["choices"][0]["finish_reason"] for chunk in made] == [None] * 5 + ["length"]


def test_the_bytes_of_an_alternative_that_is_called_by_its_id_are_the_tokens_own() -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 4}
    plain, named = (
        only(answer)["logprobs"]["content"] for answer in posted("fireworks", fields, {**fields, "return_tokens_as_token_ids": True})
    )
    for entry, by_id in zip(plain, named, strict=True):
        assert by_id["token"] == f"token_id:{entry['token_id']}" and by_id["bytes"] == entry["bytes"]
        for one, other in zip(entry["top_logprobs"], by_id["top_logprobs"], strict=True):
            assert other["token"] == f"token_id:{one['token_id']}"
            assert other["bytes"] == one["bytes"]


@pytest.mark.parametrize("dialect", WITH_IDS)
def test_a_prompt_is_cut_at_the_side_that_is_asked_for(dialect: str) -> None:
    def asked(**fields: Any) -> dict[str, Any]:
        return {"prompt": "abcdef", "return_token_ids": True, "max_tokens": 1, **fields}

    left, right, long, fits = posted(
        dialect,
        asked(truncate_prompt_tokens=4),
        asked(truncate_prompt_tokens=4, truncation_side="right"),
        asked(truncate_prompt_tokens=9),
        asked(truncate_prompt_tokens=-1, prompt="ab" * 4000, max_tokens=96),
    )
    kept = [bytes(only(answer)["prompt_token_ids"]).decode() for answer in (left, right, long, fits)]
    assert kept == ["cdef", "abcd", "abcdef", "ab" * 2000]
    assert left.json()["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("dialect", WITH_IDS)
def test_a_text_goes_without_a_bos_where_that_is_asked_for(dialect: str) -> None:
    asked = {**ASKED, "prompt": "ab", "max_tokens": 1, "return_token_ids": True}
    bodies = ({**asked, "add_special_tokens": value} for value in (True, None, False))
    answers = ask(*bodies, path="/v1/completions", dialect=dialect)
    assert [only(one)["prompt_token_ids"] for one in answers] == [[BOS, 97, 98], [BOS, 97, 98], [97, 98]]
    assert [one.header("warning") for one in answers] == [None] * 3


@pytest.mark.parametrize("beside", [{}, {"logprobs": 1}, {"return_token_ids": True}, {"stream": True}])
def test_what_is_cut_off_of_a_prompt_must_be_tokens_too(beside: dict[str, Any]) -> None:
    (answer,) = posted("openai", {"prompt": [300, 97, 98], "truncate_prompt_tokens": 2, **beside})
    assert "token ids must be from 0 to 256" in refused(answer)


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_what_ended_a_choice_is_told(dialect: str) -> None:
    text = only(posted(dialect, {"max_tokens": 8})[0])["text"]
    stop, token = text[3:5], ord(text[4])
    by_string, by_id, by_length, streamed = posted(
        dialect,
        {"stop": [stop], "include_stop_str_in_output": True},
        {"stop_token_ids": [token]},
        {"stop_token_ids": [token], "max_tokens": 1},
        {"stop_token_ids": [token], "stream": True},
    )
    assert (only(by_string)["stop_reason"], only(by_string)["text"]) == (stop, text[: text.index(stop) + 2])
    assert (only(by_id)["stop_reason"], only(by_length)["stop_reason"]) == (token, None)
    assert [one["stop_reason"] for chunk in chunks(streamed.body) for one in chunk["choices"] if "stop_reason" in one] == [token]


@pytest.mark.parametrize("dialect", ["fireworks", "together", "cerebras"])
def test_what_ended_a_choice_is_told_in_a_body_too_where_only_streams_have_what_is_asked_for(dialect: str) -> None:
    """These take a stream's options without one."""
    text = only(posted(dialect, {})[0])["text"]
    asked = {"stop": [text[3]], "stream_options": {"continuous_usage_stats": True}}
    body, stream = posted(dialect, asked, {**asked, "stream": True})
    told = [one["stop_reason"] for chunk in chunks(stream.body) for one in chunk["choices"] if "stop_reason" in one]
    assert [only(body)["stop_reason"]] == told == [text[3]]


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("dialect", ["openai", "novita"])
def test_what_ended_a_choice_is_told_whether_or_not_the_usage_so_far_has_all_that_it_needs(dialect: str, include: bool) -> None:
    options = {"include_usage": include, "continuous_usage_stats": True}
    (stream,) = posted(dialect, {"stream": True, "stream_options": options})
    assert [one["stop_reason"] for chunk in chunks(stream.body) for one in chunk["choices"] if "stop_reason" in one] == [None]


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_every_chunk_has_the_usage_so_far(dialect: str) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    made = chunks(posted(dialect, asked)[0].body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in made]
    assert counts == sorted(counts) and set(counts) >= set(range(1, 9))
    assert {chunk["usage"]["prompt_tokens"] for chunk in made} == {len(ASKED["prompt"])}
    assert all(map(completions(dialect).chunk.is_valid, made)), "as the dialect's document has them"


def test_chunks_with_more_in_them_still_have_few_sizes() -> None:
    frames = posted("openai", {"return_token_ids": True, "stream": True, "max_tokens": 40})[0].body.split(b"\n\n")
    assert len({len(frame) for frame in frames if b'"text":' in frame and b"prompt_token_ids" not in frame}) <= 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "suffix": "x"}, "prompt_logprobs"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprob_token_ids": [257], "logprobs": 1}, "logprob_token_ids"),
        ({"logprob_token_ids": [], "logprobs": 1}, "logprob_token_ids"),
        ({"truncate_prompt_tokens": 5000}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 2, "echo": True}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"add_special_tokens": 0}, "add_special_tokens"),
        ({"add_special_tokens": False, "suffix": "x"}, "add_special_tokens"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"use_beam_search": True, "stream": True}, "stream"),
        ({"use_beam_search": True, "echo": True}, "echo"),
        ({"use_beam_search": True, "stop": ["a"]}, "stop"),
        ({"use_beam_search": True, "n": 2, "best_of": 3}, "best_of"),
        ({"use_beam_search": True, "top_k": 5}, "top_k"),
        ({"use_beam_search": True, "frequency_penalty": 1}, "frequency_penalty"),
        ({"use_beam_search": True, "guided_regex": "a"}, "guided_regex"),
        ({"use_beam_search": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"use_beam_search": True, "logprobs": 5}, "logprobs"),
        ({"use_beam_search": True, "n": 11}, "n"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert f"'{param}" in refused(posted("openai", fields)[0])


def test_what_a_prompt_that_is_cut_does_not_go_with_is_named_as_it_was_sent() -> None:
    (answer,) = posted("fireworks", {"truncate_prompt_tokens": 2, "echo_last": 1})
    assert "'truncate_prompt_tokens' cannot be combined with echo_last" in refused(answer)


@pytest.mark.parametrize("dialect", ["openai", "fireworks", "together", "cerebras", "novita"])
@pytest.mark.parametrize("stream", [False, True])
def test_chosen_tokens_need_logprobs_whether_streamed_or_not(dialect: str, stream: bool) -> None:
    assert "'logprob_token_ids' needs logprobs" in refused(posted(dialect, {"logprob_token_ids": [5], "stream": stream})[0])
