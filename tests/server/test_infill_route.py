"""``/infill`` as llama.cpp's editor plug-ins send it: the prompt that comes of it, the answers, what is said of fields without effect."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.contract.conftest import ready
from tests.server.asgi import SOURCE, Answer, acall
from tests.server.one import create_app

from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import ToyRunner, ToyTokenizer
from quintet.config import EngineConfig, ServerConfig
from quintet.dialects.fields import table
from quintet.dialects.infill.dialect import FIELDS, MOST_BYTES, Infill
from quintet.errors import BadRequest
from quintet.inputs.infill import FILE, PROJECT, SNIPPET
from quintet.inputs.infill import Infill as Form
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.traits import Fim, Traits
from quintet.request import Gap
from quintet.server.asgi import ASGIApp

PRE, SUF, MID, BOS, REP, SEP = 1, 2, 3, 4, 5, 6
DOCS = Path(__file__).parents[2] / "docs" / "infill.md"

# llama.vim: autoload/llama.vim, s:fim and s:ring_update; llama.vscode: src/llama-server.ts, createRequestPayload. Every field they send.
VIM = {
    **{"id_slot": 0, "input_prefix": "def f(\n", "input_suffix": "\n", "prompt": "    a", "n_predict": 12, "stop": [], "n_indent": 0},
    **{"top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True},
    **{"t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "input_extra": [{"text": "x = 1\n", "time": [1, 2], "filename": "x.py"}]},
    "response_fields": ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached", "no/such"],
}
VIM_WARM = {
    **{"id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": [], "prompt": "", "n_predict": 0, "temperature": 0.0},
    **{"samplers": [], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]},
}
VSCODE = {
    **{"id_slot": 0, "input_prefix": "a", "input_suffix": "b", "input_extra": [], "prompt": "c", "n_predict": 6, "n_cmpl": 3},
    **{"top_k": 40, "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True},
    **{"t_max_prompt_ms": 500, "t_max_predict_ms": 2500},
}


class FimTokenizer(ToyTokenizer):
    """The toy's, with control characters as markers and a BOS before every text."""

    def __init__(self) -> None:
        self.traits = Traits(added=(1, 0), fim=Fim(PRE, SUF, MID, None, REP, SEP))

    @property
    def pieces(self) -> list[bytes]:
        return [b"" if token in (PRE, SUF, MID, BOS, REP, SEP) else piece for token, piece in enumerate(super().pieces)]

    def encode(self, text: str) -> list[int]:
        return [BOS, *super().encode(text)]


@asynccontextmanager
async def serving(tokenizer: Tokenizer, **config: Any) -> AsyncIterator[ASGIApp]:
    engine = Engine(
        lambda progress: Loaded(ToyRunner(), tokenizer, name="toy", fingerprint="f"), EngineConfig(kv_bytes=1 << 22), clock=lambda: 0.0
    )
    async with ready(engine):
        yield create_app(engine, ServerConfig(**config), source=SOURCE)


def ask(*bodies: object, tokenizer: Tokenizer | None = None, path: str = "/infill", **config: Any) -> list[Answer]:
    """The answers to bodies sent one after the other."""

    async def go() -> list[Answer]:
        async with serving(tokenizer or FimTokenizer(), **config) as app:
            return [await acall(app, body, path=path) for body in bodies]

    return asyncio.run(go())


def one(body: object, **options: Any) -> Any:
    (answer,) = ask(body, **options)
    assert answer.status == 200, answer.body
    return answer.json()


def test_llama_vims_request_is_answered_with_the_fields_it_asks_for_and_no_others() -> None:
    (answer,) = ask(VIM)
    assert set(answer.json()) == {"content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached"}
    assert re.search(rb'\s*{.*"content"\s*:"', answer.body), "llama.vim looks for this before it decodes"
    warning = '299 - "not, or not fully, heeded here: t_max_prompt_ms, id_slot, samplers[infill], input_extra[].time"'
    assert answer.header("warning") == warning


def test_its_warming_request_puts_the_prompt_into_the_cache_and_gets_an_empty_object() -> None:
    prompt = {"input_prefix": "abcdefghij" * 20}
    shown = {"response_fields": ["content", "tokens_predicted", "timings/cache_n", "stop_type", "truncated"]}
    warm, then, stream = ask({**VIM_WARM, **prompt}, {**VIM_WARM, **prompt, **shown}, {**VIM_WARM, **prompt, **shown, "stream": True})
    assert warm.json() == {}
    cached = then.json().pop("timings/cache_n")
    assert cached > 150
    assert then.json() == {"content": "", "tokens_predicted": 0, "timings/cache_n": cached, "stop_type": "limit", "truncated": False}
    assert json.loads(stream.body.removeprefix(b"data: ")) == then.json(), "one frame, the last"


def test_llama_vscodes_answers_are_an_array_if_it_wants_several() -> None:
    several = one(VSCODE)
    assert [answer["index"] for answer in several] == [0, 1, 2]
    assert {type(answer["content"]) for answer in several} == {str}
    assert one({**VSCODE, "n_cmpl": 1})["content"] == several[0]["content"]


def test_the_whole_answer_has_llama_servers_members() -> None:
    """All of to_json_non_oaicompat but ``prompt``."""
    body = one({**VIM, "response_fields": []})
    members = """index content tokens id_slot stop model tokens_predicted tokens_evaluated generation_settings has_new_line truncated
        stop_type stopping_word tokens_cached timings"""
    assert set(body) == set(members.split())
    form = f"{PROJECT}x.py\nx = 1\n{FILE}def f(\n    a\n"
    assert body["tokens_evaluated"] == len(form) + len((REP, SEP, SEP, BOS, PRE, SUF, MID))
    assert body["tokens_cached"] == body["tokens_evaluated"] + body["tokens_predicted"] - 1
    phases = {f"{phase}_{what}" for phase in ("prompt", "predicted") for what in ("n", "ms", "per_token_ms", "per_second")}
    assert set(body["timings"]) == {"cache_n", *phases}


def test_the_same_prompt_as_token_ids_gives_the_same_text() -> None:
    form = (REP, *PROJECT.encode(), SEP, *b"x.py\nx = 1\n", SEP, *FILE.encode(), BOS, PRE, *b"def f(\n    a", SUF, *b"\n", MID)
    (answer,) = ask({"prompt": form, "max_tokens": 12, "temperature": 0}, path="/v1/completions")
    assert one({**VIM, "response_fields": []})["content"] == answer.json()["choices"][0]["text"]


def test_files_are_quoted_and_what_is_typed_is_not() -> None:
    """A file may hold a marker's text, above all one of a program that makes prompts."""

    class Marked(FimTokenizer):
        def encode(self, text: str) -> list[int]:
            return [BOS, *(token for part in text.split("<mid>") for token in (*part.encode(), MID))][:-1]

    texts = {"input_prefix": "a<mid>", "input_suffix": "<mid>b", "input_extra": [{"filename": "<mid>", "text": "<mid>"}]}
    plain = one({**VIM, **texts, "prompt": "c", "response_fields": []}, tokenizer=Marked())["tokens_evaluated"]
    typed = one({**VIM, **texts, "prompt": "c<mid>", "response_fields": []}, tokenizer=Marked())["tokens_evaluated"]
    assert typed == plain + 1
    assert plain == len(f"{PROJECT}<mid>\n<mid>{FILE}a<mid>c<mid>b") + len((REP, SEP, SEP, BOS, PRE, SUF, MID))


def test_a_stream_has_its_text_in_parts_and_then_the_end_without_done() -> None:
    (answer,) = ask({**VSCODE, "stream": True, "n_cmpl": 1})
    frames = [json.loads(frame.removeprefix("data: ")) for frame in answer.body.decode().strip().split("\n\n")]
    assert [frame["stop"] for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert "".join(frame["content"] for frame in frames) == one({**VSCODE, "n_cmpl": 1})["content"]
    assert frames[-1]["tokens_predicted"] == 6


def test_why_it_ended() -> None:
    whole = one({**VSCODE, "n_cmpl": 1})
    assert (whole["stop_type"], whole["stopping_word"], whole["truncated"]) == ("limit", "", False)
    word = whole["content"][2:4]
    stopped = one({**VSCODE, "n_cmpl": 1, "stop": [word]})
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert stopped["content"] == whole["content"][: whole["content"].index(word)]
    endless = one({**VSCODE, "n_cmpl": 1, "n_predict": -1})
    assert (endless["stop_type"], endless["truncated"]) in {("eos", False), ("limit", True)}


def test_only_the_samplers_that_are_named_are_in_force() -> None:
    named = one({**VSCODE, "n_cmpl": 1, "samplers": ["top_k"], "temperature": 0.1, "min_p": 0.3})["generation_settings"]
    assert (named["top_k"], named["top_p"], named["min_p"], named["temperature"]) == (40, 1.0, 0.0, 1.0)
    usual = one({"input_prefix": "a", "input_suffix": "", "n_predict": 1})["generation_settings"]
    assert (usual["top_k"], usual["top_p"], usual["min_p"], usual["temperature"]) == (40, 0.95, 0.05, 0.8)


def test_a_model_without_markers_says_so_as_llama_server_does() -> None:
    (answer,) = ask(VIM, tokenizer=ToyTokenizer())
    assert answer.status == 501
    assert answer.json()["error"]["type"] == "not_supported_error"
    assert "not supported by toy" in answer.json()["error"]["message"]


@pytest.mark.parametrize("n_predict", [-1, 0, 5])
def test_a_line_that_does_not_fit_is_counted_without_what_is_around_it(n_predict: int) -> None:
    around = {"input_prefix": "p" * 9000, "input_suffix": "s" * 9000, "input_extra": [{"text": "e" * 9000}], "n_predict": n_predict}
    (refused,) = ask({**around, "prompt": "a" * 100_000})
    assert refused.status == 400 and refused.json()["error"]["type"] == "exceed_context_size_error"
    said = re.search(r"'prompt' must have at most (\d+) tokens, .* the context, 4096, got 100000\.", refused.json()["error"]["message"])
    assert said is not None, refused.body
    fits, exceeds = ask(*({**around, "prompt": "a" * (int(said[1]) + more)} for more in (0, 1)))
    assert fits.status == 200 and fits.json()["tokens_evaluated"] == 4095
    assert exceeds.status == 400


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 1}, "input_suffix"),
        ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": 1, "text": "a"}]}, "input_extra[0].filename"),
        ({"n_predict": "1"}, "n_predict"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_indent": -1}, "n_indent"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"samplers": "kp"}, "samplers"),
        ({"samplers": ["top_k", "best"]}, "samplers[1]"),
        ({"response_fields": [1]}, "response_fields[0]"),
        ({"t_max_predict_ms": 1.5}, "t_max_predict_ms"),
        ({"id_slot": "0"}, "id_slot"),
        ({"lora": [{"id": 0, "scale": 0.5}]}, "lora"),
    ],
)
def test_a_broken_field_is_named_in_llama_servers_shape(change: dict[str, object], name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Infill().parse(json.dumps({**VIM, **change}).encode(), 1)
    assert caught.value.param == name


HOSTILE: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**30, 0.5, -0.0, 1e300, "", "1", "a" * 5000, "\0", "\u00e9"),
    *([], {}, [[]], [None], [0], [""], ["a", 1], ["infill"] * 65, [{}], [{"text": None}], [{"text": 1}], [{"text": "", "filename": []}]),
    *([{"text": "a"}] * 3, {"text": "a"}, [{"text": "a", "filename": "b" * 5000}], [{"id": 0, "scale": 1}]),
)


@pytest.mark.parametrize("name", [field.name for field in FIELDS])
def test_whatever_a_field_holds_it_is_understood_or_refused_by_its_name(name: str) -> None:
    for value in HOSTILE:
        try:
            parsed = Infill().parse(json.dumps({**VIM, name: value}).encode(), 1)
        except BadRequest as error:
            assert error.param.partition("[")[0].partition(".")[0] == name, value
        else:
            assert parsed.request.n >= 1


@pytest.mark.parametrize("name", [field.name for field in FIELDS])
def test_a_field_is_checked_also_where_another_leaves_it_unused(name: str) -> None:
    """``max_tokens`` beside ``n_predict``, what Mirostat aims at without it, and what has no effect at all."""
    used = {**VIM, "n_cmpl": 1, "mirostat": 0, "dry_multiplier": 0}
    with pytest.raises(BadRequest) as caught:
        Infill().parse(json.dumps({**used, name: [[[]]]}).encode(), 1)
    assert caught.value.param.partition("[")[0] == name


@pytest.mark.fault("B04")
def test_texts_that_would_be_cut_are_bounded_together_by_their_bytes() -> None:
    """Twelve megabytes were tokenised for the two thousand tokens that are taken of them."""
    extra = [{"filename": "e", "text": "f" * (MOST_BYTES - 14)}]
    fits, long = ask(
        *({**VIM, "input_prefix": p, "input_suffix": "s", "prompt": "\u00e9", "input_extra": extra} for p in ("abcdefghi", "abcdefghij"))
    )
    assert (fits.status, long.status) == (200, 400)
    assert long.json()["error"]["message"] == (
        f"'input_prefix' and input_suffix, input_extra, prompt must together be at most {MOST_BYTES} bytes, got {MOST_BYTES + 1} bytes."
    )


def test_errors_are_in_llama_servers_shape() -> None:
    broken, unread, unknown = ask({**VIM, "n_predict": "1"}, b"{", {**VIM, "model": "other"})
    assert broken.status == 400
    assert broken.json() == {"error": {"code": 400, "message": "'n_predict' must be an integer, got '1'.", "type": "invalid_request_error"}}
    assert (unread.status, unread.json()["error"]["type"]) == (400, "invalid_request_error")
    assert (unknown.status, unknown.json()["error"]["code"], unknown.json()["error"]["type"]) == (404, 404, "not_found_error")


def test_unknown_fields_are_ignored_aloud_and_refused_by_a_strict_server_which_takes_documented_ones() -> None:
    (answer,) = ask({**VSCODE, "n_discard": 3})
    assert 'unknown fields ignored: n_discard"' in (answer.header("warning") or "")
    refused, taken = ask({**VSCODE, "n_discard": 3}, VSCODE, strict=True)
    assert (refused.status, taken.status) == (400, 200)


GAP = Gap("pre", "line", "suf", (("a.c\n", "A"), ("b.c\n", "BB")), 8)
LINE = list(b"line")
TEXTS = ["pre", "suf", "a.c\n", "A", "b.c\n", "BB", PROJECT, FILE, SNIPPET]
IDS = {text: list(text.encode()) for text in TEXTS}


def test_the_prompt_over_several_files() -> None:
    form = Form(PRE, SUF, MID, (BOS,), 0, REP, SEP)
    files = (REP, *PROJECT.encode(), SEP, *b"a.c\nA", SEP, *b"b.c\nBB", SEP, *FILE.encode())
    assert form.fill(GAP, IDS, LINE, 8192) == (*files, BOS, PRE, *b"preline", SUF, *b"suf", MID)


def test_without_tokens_for_files_the_chunks_stand_by_themselves() -> None:
    chunks = (*SNIPPET.encode(), *b"A", *SNIPPET.encode(), *b"BB")
    assert Form(PRE, SUF, MID).fill(GAP, IDS, LINE, 8192) == (*chunks, PRE, *b"preline", SUF, *b"suf", MID)


def test_the_suffix_first_if_the_server_is_told_so() -> None:
    form = Form(PRE, SUF, MID, (BOS,), suffix_first=True)
    assert form.fill(replace(GAP, extra=()), IDS, LINE, 8192) == (BOS, SUF, *b"suf", PRE, *b"preline", MID)


@settings(deadline=None)
@given(*[st.integers(0, 5000)] * 4, st.integers(0, 3000), st.sampled_from([256, 4096, 8192, 32768]))
def test_what_is_nearest_to_the_gap_is_kept_and_what_is_left_out_is_the_rest(
    before: int, after: int, line: int, extra: int, most: int, context: int
) -> None:
    """The end of the prefix, the beginning of the suffix, the end of the extra text; and a short line leaves room for an answer."""
    gap = Gap("p", "l", "s", (("n", "e"),), most)
    ids = {"p": range(before), "s": range(after), "e": range(extra), PROJECT: [], FILE: [], SNIPPET: [], "n": []}
    made = Form(-10, -11, -12).fill(gap, ids, [-1] * line, context)
    batch = min(2048, context // 2)
    at, to = made.index(-10), made.index(-11)
    kept, held, rest = made[at + 1 : to - line], made[to + 1 : -1], made[:at]
    assert list(kept) == list(range(before))[before - len(kept) :] and len(kept) == min(before, 3 * (batch // 4))
    assert list(held) == list(range(after))[: len(held)] and len(held) == min(after, max(0, batch // 4 - 2 - line))
    assert list(rest) == list(range(extra))[extra - len(rest) :]
    if line < batch // 4:
        assert len(made) < max(context - 2 * most, batch + 4)


def test_the_docs_hold_the_table_that_the_code_enforces() -> None:
    found = re.search(r"<!-- fields -->\n(.*)<!-- /fields -->", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found[1].strip() == table(FIELDS).strip()
