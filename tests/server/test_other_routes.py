"""llama-server's ``/completion``, ``/props`` and ``/slots``: shapes, options, errors, streams."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.server.asgi import Answer, acall
from tests.server.test_infill_route import BOS, PRE, FimTokenizer, ask, serving

from quintet.dialects.completion.dialect import FIELDS
from quintet.dialects.fields import table

DOCS = Path(__file__).parents[2] / "docs" / "completion.md"
GREEDY: dict[str, Any] = {"prompt": "Once upon", "n_predict": 8, "temperature": 0}


def completion(*bodies: object, **config: Any) -> list[Answer]:
    return ask(*bodies, path="/completion", **config)


def one(body: dict[str, Any]) -> Any:
    (answer,) = completion(body)
    assert answer.status == 200, answer.body
    return answer.json()


def frames(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(frame.removeprefix(b"data: ")) for frame in answer.body.split(b"\n\n") if frame and frame != b"data: [DONE]"]


def got(path: str, **config: Any) -> Answer:
    async def go() -> Answer:
        async with serving(FimTokenizer(), **config) as app:
            return await acall(app, None, method="GET", path=path)

    return asyncio.run(go())


def test_the_answer_has_llama_servers_members_and_the_text_that_completions_have() -> None:
    body = one(GREEDY)
    (plain,) = ask({"prompt": "Once upon", "max_tokens": 8, "temperature": 0}, path="/v1/completions")
    assert body["content"] == plain.json()["choices"][0]["text"]
    members = """index content tokens id_slot stop model tokens_predicted tokens_evaluated generation_settings prompt has_new_line truncated
        stop_type stopping_word tokens_cached timings"""
    assert set(body) == set(members.split())
    assert (body["prompt"], body["tokens"], body["stop"], body["stop_type"], body["tokens_predicted"]) == (
        "Once upon",
        [],
        True,
        "limit",
        8,
    )
    assert body["tokens_evaluated"] == len("Once upon") + 1, "and a BOS"
    assert (body["generation_settings"]["n_predict"], body["generation_settings"]["temperature"]) == (8, 0.0)


@pytest.mark.parametrize(
    ("path", "body"), [("/completion", GREEDY), ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2})]
)
def test_fields_of_others_that_ask_for_nothing_are_taken_without_a_word(path: str, body: dict[str, Any]) -> None:
    given = {**body, "skip_special_tokens": True, "custom_logit_processor": None, "repetition_detection": {}}
    for strict in (False, True):
        (answer,) = ask(given, path=path, strict=strict)
        assert (answer.status, answer.header("warning")) == (200, None), answer.body


def test_a_stream_is_the_answer_in_parts_without_done() -> None:
    whole, stream = completion({**GREEDY, "return_tokens": True, "n_probs": 2}, {**GREEDY, "stream": True, "n_probs": 2})
    *parts, end = frames(stream)
    assert b"[DONE]" not in stream.body
    assert "".join(part["content"] for part in parts) == whole.json()["content"]
    assert [token for part in parts for token in part["tokens"]] == whole.json()["tokens"]
    assert [one for part in parts for one in part["completion_probabilities"]] == whole.json()["completion_probabilities"]
    assert not any(part["stop"] for part in parts) and (end["stop"], end["content"]) == (True, "")
    same = {"stop_type", "tokens_predicted", "tokens_evaluated", "truncated", "has_new_line", "stopping_word", "prompt", "model"}
    assert {name: end[name] for name in same} == {name: whole.json()[name] for name in same}


def test_probabilities_are_those_of_the_log_probabilities() -> None:
    (lists,) = ask({"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "logprobs": 3}, path="/v1/completions")
    known = lists.json()["choices"][0]["logprobs"]
    for entry, token, logprob, top in zip(
        one({**GREEDY, "n_probs": 3})["completion_probabilities"],
        *(known[name] for name in ("tokens", "token_logprobs", "top_logprobs")),
        strict=True,
    ):
        assert (entry["token"], entry["logprob"], entry["bytes"]) == (token, logprob, list(token.encode()))
        assert {name["token"]: name["logprob"] for name in entry["top_logprobs"]} == top
        assert entry["id"] == ord(token)


def test_the_bytes_of_a_control_token_in_an_echo_are_those_of_its_text() -> None:
    body = {"prompt": [97, PRE, 98], "echo": True, "logprobs": True, "top_logprobs": 1, "max_tokens": 1}
    (answer,) = ask(body, path="/fireworks/inference/v1/completions")
    _, entry, *_ = answer.json()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], bytes(entry["bytes"])) == ("<0x01>", b"<0x01>")
    for one in entry["top_logprobs"]:
        assert bytes(one["bytes"]) == (FimTokenizer().pieces[one["token_id"]] or one["token"].encode())


def test_a_boolean_number_of_log_probabilities_is_none_or_one() -> None:
    off, on, one_each = completion({**GREEDY, "logprobs": False}, {**GREEDY, "logprobs": True}, {**GREEDY, "n_probs": 1})
    assert "completion_probabilities" not in off.json()
    assert on.json()["completion_probabilities"] == one_each.json()["completion_probabilities"]


def test_the_bytes_of_every_token_of_a_list_are_its_own_also_of_a_part_of_a_character() -> None:
    class Parts(FimTokenizer):
        @property
        def pieces(self) -> list[bytes]:
            return [piece and bytes([0x80 + token % 64]) if token % 3 else piece for token, piece in enumerate(super().pieces)]

    whole, stream = ask(*({**GREEDY, "n_probs": 20, "stream": stream} for stream in (False, True)), tokenizer=Parts(), path="/completion")
    rows = whole.json()["completion_probabilities"]
    assert rows == [row for part in frames(stream) for row in part.get("completion_probabilities", ())]
    entries = [entry for row in rows for entry in (row, *row["top_logprobs"])]
    assert len({entry["id"] for entry in entries if entry["token"] == "\ufffd"}) > 3
    for entry in entries:
        assert bytes(entry["bytes"]) == (Parts().pieces[entry["id"]] or Parts().spelling(entry["id"]).encode())
    for row in rows:
        assert row == {**row["top_logprobs"][0], "top_logprobs": row["top_logprobs"]}, "the likeliest is the chosen one"


def test_all_forms_of_a_prompt_that_mean_the_same_get_the_same_text() -> None:
    ids = [BOS, *b"Once upon"]
    forms = ["Once upon", ids, {"prompt_string": "Once upon"}, [*ids[:5], " upon"], ["Once upon"], [ids]]
    assert len({one({**GREEDY, "prompt": form})["content"] for form in forms}) == 1
    several = one({**GREEDY, "prompt": ["Once upon", ids, {"prompt_string": "Once upon"}, [*ids[:5], " upon"]]})
    assert [answer["index"] for answer in several] == [0, 1, 2, 3]
    assert len({answer["content"] for answer in several}) == 1
    assert {answer["tokens_evaluated"] for answer in several} == {10}
    assert len(one({**GREEDY, "prompt": ["a", "b"], "n_cmpl": 2})) == 4


def biases(bias: object) -> dict[int, float]:
    """What is in force, by token."""
    known = one({**GREEDY, "n_predict": 1, "logit_bias": bias})["generation_settings"]["logit_bias"]
    assert len({each["token"] for each in known}) == len(known)
    return {each["token"]: each["bias"] for each in known}


@pytest.mark.parametrize("bias", [[[101, False]], [["e", -100]], {"101": -100}, {"e": False}])
def test_biases_are_of_ids_and_texts(bias: object) -> None:
    assert "e" not in one({**GREEDY, "n_predict": 40, "logit_bias": bias})["content"]


@pytest.mark.parametrize(
    "bias",
    [
        *([["e", 5], [101, False]], [[101, False], ["e", 5]], [["e", False], ["e", 100]], [[101, -100.0], ["e", 5]]),
        *({"e": 5, "101": False}, {"101": False, "e": 5}, [[101, 100], ["e", 100], [101, False]]),
    ],
)
def test_a_token_that_is_banned_is_never_produced_whatever_else_is_said_of_it(bias: object) -> None:
    assert biases(bias) == {101: -100}
    assert "e" not in one({**GREEDY, "n_predict": 40, "logit_bias": bias})["content"]


def test_biases_of_one_token_add_up() -> None:
    assert biases([[101, 5], ["e", 2.5], [102, 1]]) == {101: 7.5, 102: 1}
    assert biases([["eel", 2]]) == {101: 4, 108: 2}
    assert biases({"e": 70, "101": 70}) == {101: 100}, "as much as a bias may be"


def test_digits_are_a_text_in_an_array_and_an_id_as_a_key() -> None:
    assert biases([["5", False]]) == {ord("5"): -100}
    assert biases({"5": False}) == {5: -100}
    assert biases([["101", 1]]) == {ord("1"): 2, ord("0"): 1}


@pytest.mark.fault("B05")
def test_a_text_that_stands_for_too_many_tokens_is_refused_and_what_it_may_stand_for_is_told_of_each_choice() -> None:
    """250 kB of text came to 35,000 biases, and they were in the answer as often as there were choices: over a hundred megabytes."""

    class Letters(FimTokenizer):
        def encode(self, text: str) -> list[int]:
            return [BOS, *map(ord, text)]

    letters = "".join(map(chr, range(2048, 2048 + 1023)))
    few = {**GREEDY, "n_predict": 1, "n_cmpl": 3, "logit_bias": {"5": -1, "abc": 2}}
    bodies = [{**GREEDY, "logit_bias": bias} for bias in ({"5": 1, letters: 1}, {"5": 1, f"{letters}a": 1})]
    within, beyond, told = ask(*bodies, few, tokenizer=Letters(), path="/completion")
    assert "'logit_bias' token ids must be from" in within.json()["error"]["message"], "this model has no such tokens"
    assert (beyond.status, "1024 different tokens" in beyond.json()["error"]["message"]) == (400, True)
    known = [{"token": 5, "bias": -1.0}, *({"token": token, "bias": 2.0} for token in b"abc")]
    assert [one["generation_settings"]["logit_bias"] for one in told.json()] == [known] * 3


def test_texts_of_biases_are_bounded_together() -> None:
    texts = [["x" * 65_536, 1]], [["x" * 65_000, 1], ["y" * 537, 1]]
    fits, long = completion(*({**GREEDY, "n_predict": 1, "logit_bias": bias} for bias in texts))
    assert (fits.status, long.status, "65536 characters" in long.json()["error"]["message"]) == (200, 400, True)


def test_mirostat_stands_for_a_top_p_that_is_greedy_by_itself() -> None:
    for beside, temperature in (({"mirostat": 2}, 0.7), ({}, 0.0)):
        assert one({**GREEDY, "temperature": 0.7, "top_p": 0, **beside})["generation_settings"]["temperature"] == temperature


def test_a_control_that_single_precision_has_for_0_is_on() -> None:
    settings = one({**GREEDY, "mirostat": 2, "mirostat_tau": 1e-50, "top_n_sigma": 5e-324})["generation_settings"]
    assert (settings["mirostat_tau"], settings["top_n_sigma"]) == (1e-6, 1e-6)


def test_what_mirostat_stands_for_is_named_if_it_was_sent() -> None:
    filters = {"top_k": 1, "top_p": 0.1, "min_p": 0.9, "typical_p": 0.1, "top_n_sigma": 1, "xtc_probability": 1}
    bodies: list[dict[str, Any]] = [
        {"mirostat": 2},
        {"mirostat": 2, "top_k": 1},
        {"mirostat": 2, **filters},
        {"mirostat": 2, "top_k": 1, "temperature": 0},
        {"mirostat": 2, "samplers": ["infill"]},
        {"mirostat": 0, **filters},
    ]
    named = [None, "top_k", "top_n_sigma, top_k, typical_p, top_p, min_p, xtc_probability", None, "mirostat, samplers[infill]", None]
    gap = {"input_prefix": "a", "input_suffix": "b"}
    for path, beside in (("/completion", {"prompt": "a"}), ("/infill", gap)):
        answers = ask(*({**beside, "n_predict": 1, **body} for body in bodies), path=path)
        warnings = [None if names is None else f'299 - "not, or not fully, heeded here: {names}"' for names in named]
        assert [answer.header("warning") for answer in answers] == warnings


@pytest.mark.fault("B04")
def test_many_texts_of_a_prompt_or_of_biases_are_tokenised_off_the_event_loop() -> None:
    """A thousand of 3,000 letters held every stream up for seconds."""
    threads: set[bool] = set()

    class Watched(FimTokenizer):
        def encode(self, text: str) -> list[int]:
            if text.startswith("0"):
                threads.add(threading.current_thread() is threading.main_thread())
            return super().encode(text)

    texts = [f"{number:02} " * 10 for number in range(200)]
    bodies: list[dict[str, Any]] = [{"prompt": [1, *texts]}, {"prompt": [2], "logit_bias": [[text, -1] for text in texts]}]
    answers = ask(*({**body, "n_predict": 2} for body in bodies), tokenizer=Watched(), path="/completion")
    assert [answer.status for answer in answers] == [400, 200], "the first is too long for the context"
    assert threads == {False}


def test_what_ends_an_answer_is_told_and_constraints_bind() -> None:
    text = one({**GREEDY, "n_predict": 12})["content"]
    stopped = one({**GREEDY, "n_predict": 12, "stop": [text[3:5]]})
    assert (stopped["stop_type"], stopped["stopping_word"], stopped["content"]) == ("word", text[3:5], text[: text.index(text[3:5])])
    ended = one({**GREEDY, "n_predict": -1, "grammar": 'root ::= "yes" | "no"'})
    assert (ended["stop_type"], ended["content"] in ("yes", "no")) == ("eos", True)
    assert json.loads(one({**GREEDY, "n_predict": 60, "json_schema": {"const": 7}})["content"]) == 7
    warm = one({**GREEDY, "n_predict": 0})
    assert (warm["content"], warm["tokens_predicted"], warm["stop_type"]) == ("", 0, "limit")


@pytest.mark.parametrize("rule", [{}, {"stop": list("abcdefghijklmnopqrstuvwxyz ")}, {"grammar": 'root ::= ""'}])
def test_with_n_predict_0_nothing_is_generated_whatever_would_end_it(rule: dict[str, Any]) -> None:
    whole, stream = completion(*({**GREEDY, **rule, "n_predict": 0, "stream": stream} for stream in (False, True)))
    (end,) = frames(stream)
    for body in (whole.json(), end):
        assert (body["content"], body["tokens_predicted"], body["truncated"]) == ("", 0, False)
        assert (body["stop_type"], body["stopping_word"]) == ("limit", "")


def test_the_numbers_of_an_answer_do_not_depend_on_what_else_was_asked_for() -> None:
    """Tokens of a stop string counted for one choice and not for several, and in a stream."""
    text = one({**GREEDY, "n_predict": 12})["content"]
    ended = {**GREEDY, "n_predict": 12, "stop": [text[3:6]]}
    alone = one(ended)
    assert (alone["tokens_predicted"], alone["timings"]["predicted_n"], alone["tokens_cached"]) == (6, 6, 15)
    several, streamed = completion({**ended, "n_cmpl": 2}, {**ended, "n_cmpl": 2, "stream": True})
    ends = [frame for frame in frames(streamed) if frame["stop"]]
    names = ("tokens_predicted", "tokens_cached", "truncated", "stop_type", "stopping_word")
    assert {tuple(each[name] for name in names) for each in (*several.json(), *ends)} == {tuple(alone[name] for name in names)}


def test_each_answer_tells_the_seed_that_draws_it_again() -> None:
    several = one({"prompt": ["Once", "Twice"], "n_predict": 8, "n_cmpl": 2, "seed": 5})
    seeds = [answer["generation_settings"]["seed"] for answer in several]
    assert sorted(set(seeds)) == [5, 6]
    for answer, seed in zip(several, seeds, strict=True):
        assert one({"prompt": answer["prompt"], "n_predict": 8, "seed": seed})["content"] == answer["content"]


def test_the_timings_of_several_prompts_are_of_all_of_them() -> None:
    prompts = ["a" * 70, "b" * 40, "c" * 9]
    _, again = (answer.json() for answer in completion(*[{**GREEDY, "prompt": prompts}] * 2))
    for answer in again:
        assert answer["timings"]["cache_n"] > 0
        assert answer["timings"]["cache_n"] + answer["timings"]["prompt_n"] == sum(each["tokens_evaluated"] for each in again)


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[1, None]]}, 400, "prompt[0][1]"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, 501, "prompt.multimodal_data"),
        ({"prompt": {}}, 400, "prompt.prompt_string"),
        ({"prompt": "a", "dynatemp_range": 1}, 501, "dynatemp_range"),
        ({"prompt": "a", "post_sampling_probs": True}, 501, "post_sampling_probs"),
        ({"prompt": "a", "min_keep": 2}, 501, "min_keep"),
        ({"prompt": "a", "adaptive_target": 0.5}, 501, "adaptive_target"),
        ({"prompt": "a", "grammar": 'root ::= "a"', "grammar_lazy": True}, 501, "grammar_lazy"),
        ({"prompt": "a", "logit_bias": [[101]]}, 400, "logit_bias[0]"),
        ({"prompt": "a", "logit_bias": [[101, "1"]]}, 400, "logit_bias[0]"),
        ({"prompt": "a", "mirostat": 1}, 400, "mirostat"),
        ({"prompt": "a" * 5000}, 400, "prompt"),
    ],
)
def test_what_cannot_be_is_refused_by_name_in_llama_servers_form(body: dict[str, Any], status: int, names: str) -> None:
    (answer,) = completion(body)
    error = answer.json()["error"]
    assert (answer.status, error["code"], set(error)) == (status, status, {"code", "message", "type"})
    assert f"'{names}'" in error["message"]


@pytest.mark.parametrize(
    ("config", "body", "names"),
    [
        ({}, {"prompt": ["a", "b"], "n_cmpl": 128}, "n_cmpl"),
        ({}, {"prompt": ["a", "b"], "n": 128}, "n"),
        ({"max_logprobs": 59}, {"prompt": "a", "n_predict": 10, "n_probs": 5}, "n_probs"),
        ({"max_logprobs": 59}, {"prompt": "a", "n_predict": 60, "n_probs": 1}, "n_predict"),
        ({"max_logprobs": 59}, {"prompt": "a", "max_tokens": 60, "n_probs": 1}, "max_tokens"),
        ({"max_logprobs": 59}, {"prompt": "a", "max_completion_tokens": 60, "max_tokens": 1, "n_probs": 1}, "max_completion_tokens"),
        ({"max_logprobs": 59}, {"prompt": "a", "n_probs": 1}, "n_predict"),
        ({"max_logprobs": 59}, {"prompt": "a", "n_predict": 10, "logprobs": 5}, "logprobs"),
    ],
)
def test_what_is_too_much_is_refused_by_the_name_that_the_client_gave_it(config: dict[str, Any], body: dict[str, Any], names: str) -> None:
    (answer,) = completion(body, **config)
    assert (answer.status, answer.json()["error"]["message"].partition(" ")[0]) == (400, f"'{names}'")


def test_what_has_no_effect_is_said() -> None:
    sent = {"repeat_last_n": 64, "n_keep": 3, "n_cache_reuse": 256, "samplers": ["top_k", "dry", "top_k"], "timings_per_token": True}
    answer, none = completion({**GREEDY, **sent}, {**GREEDY, "repeat_last_n": -1, "n_cache_reuse": 0, "adaptive_target": None})
    assert answer.header("warning") == '299 - "unknown fields ignored: timings_per_token"'
    assert [value for name, value in answer.headers if name == "warning"][1:] == [
        '299 - "not, or not fully, heeded here: repeat_last_n, n_keep, n_cache_reuse, samplers[top_k]"'
    ]
    assert (none.status, none.header("warning")) == (200, None)


def test_other_names_of_llama_servers_source_count_where_its_own_are_not_there() -> None:
    rest = {key: value for key, value in GREEDY.items() if key != "n_predict"}
    bodies = ({"max_completion_tokens": 3, "max_tokens": 5}, {"n_predict": 2, "max_completion_tokens": 3}, {"max_tokens": 5})
    assert [answer.json()["tokens_predicted"] for answer in completion(*({**rest, **body} for body in bodies))] == [3, 2, 5]
    other, own, both = completion(*({**GREEDY, **body} for body in ({"logprobs": 2}, {"n_probs": 2}, {"n_probs": 2, "logprobs": 1})))
    told = [answer.json()["completion_probabilities"] for answer in (other, own, both)]
    assert told[0] == told[1] == told[2] and other.header("warning") is None


def test_penalties_over_none_of_the_tokens_are_none() -> None:
    """llama-server's page, `repeat_last_n`: "`0` is disabled"; here they were over all of them."""
    asked = {**GREEDY, "repeat_penalty": 1.9, "presence_penalty": 1.5, "frequency_penalty": 1.5}
    off, on = completion({**asked, "repeat_last_n": 0}, asked)
    names = ("repeat_penalty", "presence_penalty", "frequency_penalty")
    used = [[answer.json()["generation_settings"][name] for name in names] for answer in (off, on)]
    assert used == [[1.0, 0.0, 0.0], [1.9, 1.5, 1.5]]
    assert off.header("warning") is None


def test_props_and_slots() -> None:
    props = got("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["default_generation_settings"]["params"]["top_k"] == 40
    assert json.loads(json.dumps(props["default_generation_settings"]["params"]))["seed"] == -1
    assert (props["modalities"], props["is_sleeping"]) == ({"vision": False, "audio": False}, False)
    slots = got("/slots").json()
    assert [slot["id"] for slot in slots] == list(range(props["total_slots"]))
    assert not any(slot["is_processing"] for slot in slots)
    assert got("/props", api_keys=("k",)).status == got("/slots", api_keys=("k",)).status == 401


def test_the_table_in_the_docs_is_what_is_enforced() -> None:
    found = re.search(r"<!-- fields -->\n(.*)<!-- /fields -->", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None and found[1].strip() == table(FIELDS).strip()
