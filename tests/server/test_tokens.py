"""Tokenising over HTTP, in the shapes that vLLM's and llama.cpp's clients know."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
from tests.server.asgi import JSON, Answer, acall, call, unread
from tests.server.one import create_app
from tests.server.scripted import EOS, FIRST_WORD, ScriptedBackend

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.tokens import parse_detokenize, tokenized
from quintet.executor import FairExecutor
from quintet.server import large_answers, tokens
from quintet.server.asgi import ASGIApp
from quintet.server.http import PIECE_BYTES


def ask(path: str, body: object = None, method: str = "POST", **config: Any) -> Answer:
    return call(create_app(ScriptedBackend(), ServerConfig(**config)), body, path=path, method=method)


def test_vllms_form() -> None:
    plain = ask("/tokenize", {"model": "scripted", "prompt": "a\u00e9", "add_special_tokens": False})
    assert plain.json() == {"count": 3, "max_model_len": 64, "tokens": [97, 195, 169], "token_strs": None}
    full = ask("/tokenize", {"prompt": "a", "return_token_strs": True}).json()
    assert (full["tokens"], full["token_strs"]) == ([EOS, 97], ["<eos>", "a"])


@pytest.mark.parametrize("text", ["prompt", "content"])
@pytest.mark.parametrize("field", ["add_special", "add_special_tokens", "parse_special", "return_token_strs", "with_pieces", "inside"])
def test_a_flag_of_the_wrong_type_is_refused_in_either_form(text: str, field: str) -> None:
    """schemathesis found that those of the other form were not looked at."""
    answer = ask("/tokenize", {text: "a", field: 1})
    assert (answer.status, answer.json()["error"]["param"]) == (400, field)


def test_llama_cpps_form() -> None:
    assert ask("/tokenize", {"content": "ab"}).json() == {"tokens": [97, 98]}
    assert ask("/tokenize", {"content": "", "add_special": True}).json() == {"tokens": [EOS]}
    assert ask("/tokenize", {"content": "\u00e9", "with_pieces": True}).json()["tokens"][0] == {"id": 195, "piece": [195]}


@pytest.mark.parametrize("text", ["prompt", "content"])
def test_whether_special_tokens_come_around_a_text_is_said_under_either_name(text: str) -> None:
    """`add_special` counted for nothing beside `prompt`, nor `add_special_tokens` beside `content`."""
    own, other = ("add_special_tokens", "add_special") if text == "prompt" else ("add_special", "add_special_tokens")
    for name in (own, other):
        for value, ids in ((True, [EOS, 97]), (False, [97])):
            assert ask("/tokenize", {text: "a", name: value}).json()["tokens"] == ids
    assert ask("/tokenize", {text: "a", own: True, other: False}).json()["tokens"] == [EOS, 97], "its own counts if both are there"
    assert ask("/tokenize", {text: "a", own: None, other: None}).json() == ask("/tokenize", {text: "a"}).json()


@pytest.mark.parametrize("text", ["prompt", "content"])
def test_nothing_comes_around_a_text_that_is_said_to_be_inside_another(text: str) -> None:
    """The playground's, where one has typed after tokens that were drawn: a SentencePiece model was sent a space that was not there."""

    class Spaced(ScriptedBackend):
        async def tokenize(self, text: str, *about: Any, **more: Any) -> list[int]:
            return await super().tokenize(f" {text}", *about, **more)

    def tokens_of(**flags: bool) -> object:
        return call(create_app(Spaced(), ServerConfig()), {text: "a", **flags}, path="/tokenize", method="POST").json()["tokens"]

    assert tokens_of(add_special_tokens=False) == tokens_of(add_special_tokens=False, inside=False) == [32, 97]
    assert tokens_of(inside=True) == tokens_of(inside=True, add_special=False, add_special_tokens=False) == [97]


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a"}), ("/tokenize", {"content": "a"}), ("/detokenize", {"tokens": [97]})]
)
def test_a_field_that_is_unknown_is_ignored_but_not_in_silence_and_refused_by_a_strict_server(path: str, body: dict[str, object]) -> None:
    warned = ask(path, {**body, "tokenise": 1})
    assert (warned.status, warned.header("warning")) == (200, '299 - "unknown fields ignored: tokenise"')
    assert ask(path, body, strict=True).header("warning") is None
    refused = ask(path, {**body, "tokenise": 1}, strict=True)
    error = refused.json()["error"]
    assert (refused.status, error["param"], error["code"]) == (400, "tokenise", "unknown_parameter")


def test_detokenize_is_the_way_back() -> None:
    answer = ask("/detokenize", {"model": "scripted", "tokens": list("a\u00e9\U0001f600".encode())}).json()
    assert answer == {"prompt": "a\u00e9\U0001f600", "content": "a\u00e9\U0001f600"}
    assert ask("/detokenize", {"tokens": []}).json()["prompt"] == ""
    assert ask("/detokenize", {"tokens": [195]}).json()["prompt"] == "\ufffd"


def test_the_tokenizers_facts_are_told_and_what_it_lacks_is_null() -> None:
    facts = {"eos_token": "</s>", "bos_token": None, "pad_token": None, "chat_template": "{{ messages }}"}
    assert ask("/tokenizer_info", method="GET").json() == facts


@pytest.mark.parametrize("name", PROVIDERS)
def test_it_is_where_lm_eval_looks_for_it_which_strips_v1_completions_from_its_url(name: str) -> None:
    for base in PROVIDERS[name].bases:
        stripped = f"{base}/completions".removesuffix("/v1/completions").removesuffix("/completions")
        assert ask(f"{stripped}/tokenizer_info", method="GET").status == 200
        assert ask(f"{stripped}/tokenize", {"prompt": "a", "add_special_tokens": False}).json()["tokens"] == [97]
        assert ask(f"{stripped}/detokenize", {"tokens": [97]}).json()["prompt"] == "a"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"content": "a", "parse_special": False}, "parse_special"),
        ("/tokenize", {"prompt": "a", "parse_special": False}, "parse_special"),
        ("/tokenize", {"prompt": "a", "with_pieces": True}, "with_pieces"),
        ("/tokenize", {"content": "a", "return_token_strs": True}, "return_token_strs"),
        ("/tokenize", {"prompt": "a", "inside": True, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "inside": True, "add_special": True}, "add_special"),
        ("/tokenize", {"messages": []}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [[1]]}, "tokens"),
        ("/detokenize", {"tokens": ["1"]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [999]}, "tokens"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(path: str, body: object, param: str) -> None:
    answer = ask(path, body)
    assert (answer.status, answer.json()["error"]["param"]) == (400, param)


def test_another_model_is_not_found_and_a_large_body_is_refused() -> None:
    assert ask("/tokenize", {"model": "x", "prompt": "a"}).status == 404
    assert ask("/detokenize", {"model": "x", "tokens": [1]}).status == 404
    assert ask("/tokenize", {"prompt": "a" * 100}, max_body_bytes=50).status == 413


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tokenize", {"prompt": "a" * 2**21}), ("/tokenize", {"content": "a" * 2**21}), ("/detokenize", {"tokens": [1] * 2**20})],
)
def test_a_text_that_no_context_bounds_is_bounded_by_its_bytes(path: str, body: object) -> None:
    """Where images may be larger: 11 MB took the front to 900 MB."""
    answer = ask(path, body)
    assert (answer.status, "2097152 bytes" in answer.body.decode()) == (413, True)


@pytest.mark.fault("B23")
def test_of_texts_that_arrive_together_one_at_a_time_becomes_ids_and_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of the largest took the front to 1.4 GB: all of them waited as ids for the executor."""
    steps: list[str] = []
    answer = tokenized

    class Noting(ScriptedBackend):
        async def tokenize(self, *about: Any, **more: Any) -> list[int]:
            steps.append("ids")
            return await super().tokenize(*about, **more)

    def noted(*about: Any) -> bytes:
        steps.append("answer")
        return answer(*about)

    monkeypatch.setattr(tokens, "tokenized", noted)

    async def scenario() -> list[Answer]:
        app = create_app(Noting(), ServerConfig())
        texts = [{"content": "a" * 50_000}, {"content": "b" * 10}, {"prompt": "c" * 50_000}, {"prompt": "d"}]
        return await asyncio.gather(*(acall(app, text, path="/tokenize") for text in texts))

    assert [len(answer.json()["tokens"]) for answer in asyncio.run(scenario())] == [50_000, 10, 50_001, 2]
    assert steps == ["ids", "answer"] * 4


@pytest.mark.fault("B23")
@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [97]})])
def test_a_short_text_waits_for_nobodys_long_one(path: str, body: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits(*_: object) -> None:
        raise AssertionError("behind whatever others have there")

    monkeypatch.setattr(FairExecutor, "run", waits)
    assert ask(path, body).status == 200


def test_ids_that_wait_take_little_more_than_their_body() -> None:
    """64 bodies of the largest took the front to 1.6 GB."""
    body = json.dumps({"tokens": [300] * 100_000}, separators=(",", ":")).encode()
    parse_detokenize(body)
    tracemalloc.start()
    try:
        asked = parse_detokenize(body)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (asked.model, len(asked.ids), set(asked.ids)) == ("", 100_000, {300}) and held < 1.1 * len(body)


WIDE = {"tokens": [FIRST_WORD] * 5000}
"""Each is 64 spaces: the answer is twenty times the body."""


def wide(**config: Any) -> ASGIApp:
    return create_app(ScriptedBackend(words=(b" " * 64,)), ServerConfig(**config))


@pytest.mark.fault("B23")
@pytest.mark.parametrize(("path", "body"), [("/detokenize", WIDE), ("/tokenize", {"content": "a" * 50_000, "with_pieces": True})])
def test_a_large_answer_is_written_in_pieces_as_its_client_reads(path: str, body: object) -> None:
    async def scenario() -> None:
        app, read, sent = wide(), asyncio.Event(), list[bytes]()
        asking = asyncio.ensure_future(unread(app, path, body, read, sent))
        while not sent:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [len(part) for part in sent] == [PIECE_BYTES], "what was not read stops the rest"
        read.set()
        await asking
        whole = await acall(app, body, path=path)
        assert b"".join(sent) == whole.body
        assert len(whole.body) > 9 * PIECE_BYTES and max(map(len, whole.parts)) == PIECE_BYTES

    asyncio.run(scenario())


@pytest.mark.fault("B23")
@pytest.mark.parametrize(("keys", "status"), [((), 503), (("a", "b"), 429)])
def test_answers_that_wait_for_clients_have_bounded_room(keys: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_answers, "MOST_ANSWERS", 1_500_000)

    async def scenario() -> None:
        app, read, sent = wide(api_keys=keys), asyncio.Event(), list[bytes]()
        first = asyncio.ensure_future(unread(app, "/detokenize", WIDE, read, sent, *keys[:1]))
        while not sent:
            await asyncio.sleep(0.001)

        async def ask(key: str, many: int) -> Answer:
            headers = [*JSON, *([("authorization", f"Bearer {key}")] if keys else [])]
            return await acall(app, {"tokens": [FIRST_WORD] * many}, path="/detokenize", headers=headers)

        refused = await ask("a", 7000 if keys else 10_000)
        assert (refused.status, refused.header("retry-after") is not None) == (status, True)
        assert (await ask("a", 10)).status == 200, "a small one takes no room"
        assert not keys or (await ask("b", 5000)).status == 200
        read.set()
        await first
        assert (await ask("a", 5000)).status == 200

    asyncio.run(scenario())
