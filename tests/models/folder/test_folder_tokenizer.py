"""A folder's tokenizer gives the ids of transformers' ``AutoTokenizer``; what it needs beside them is found as for a GGUF file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.errors import ModelError
from quintet.models.folder.tokenizer import FolderTokenizer, build_folder_tokenizer
from quintet.models.traits import ThinkTags

GOLDEN = Path(__file__).parents[2] / "golden" / "folder_tokenizers"
"""Written by ``tests/tools/record_folder_tokenizers.py``."""
FORMS = ("llama_3", "llama_2", "gemma")
ROWS = 512
"""Of the embedding: more than there are tokens."""
CONFIG = {
    **{"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 64, "hidden_size": 32},
    **{"intermediate_size": 32, "vocab_size": ROWS},
}


def folder_of(path: Path, form: str, **config: Any) -> Path:
    shutil.copytree(GOLDEN / form, path)
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return path


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(form: str, tmp_path: Path) -> FolderTokenizer:
    return build_folder_tokenizer(folder_of(tmp_path / "model", form))


def recorded(form: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((GOLDEN / f"{form}.json").read_text())
    return rows


def test_ids_are_those_of_auto_tokenizer(form: str, made: FolderTokenizer) -> None:
    for row in recorded(form):
        assert made.encode(row["text"]) == row["ids"], row["text"]


def test_pieces_are_the_text_but_for_control_tokens(form: str, made: FolderTokenizer) -> None:
    before, after = made.traits.added
    prefix = " " if form == "llama_2" else ""
    for row in recorded(form):
        text = row["text"]
        if not any(control in text for control in ("<s>", "</s>", "<|end|>", "<|begin|>")):
            ids = made.encode(text)[before:]
            got = b"".join(made.pieces[token] for token in (ids[:-after] if after else ids)).decode()
            assert got == (prefix + text if text else "").replace("\u2581", " " if form != "llama_3" else "\u2581"), text


def test_each_token_is_spelled_as_the_vocabulary_has_it(form: str, made: FolderTokenizer) -> None:
    spelled = {made.spelling(token): token for token in range(len(made.pieces)) if made.spelling(token)}
    assert made.spelling(10**6) == ""
    controls = {token for token, piece in enumerate(made.pieces) if not piece and made.spelling(token)}
    assert {made.encode_inside(made.spelling(token))[0] for token in controls} == controls, "each is written by its own text alone"
    assert spelled["\u0120a" if form == "llama_3" else "\u2581a"] in made.encode("b a")


def test_nothing_is_put_to_a_text_inside_another(form: str, made: FolderTokenizer) -> None:
    for text in ("The sky", " is", "x<think>y", "\n\n"):
        assert b"".join(made.pieces[token] for token in made.encode_inside(text)) == text.encode()


def test_a_control_tokens_text_is_text_where_it_is_quoted(form: str, made: FolderTokenizer) -> None:
    end = {"llama_3": "<|end|>", "llama_2": "</s>", "gemma": "<eos>"}[form]
    token = made.encode_inside(end)
    assert len(token) == 1 and token[0] in made.eos_ids and made.pieces[token[0]] == b""
    quoted = made.encode_quoted(f"a{end}b")
    assert token[0] not in quoted
    assert b"".join(made.pieces[one] for one in quoted).decode().strip() == f"a{end}b"
    if form != "llama_2":
        assert made.encode_inside("<think>")[0] in made.encode_quoted("a<think>b")


@pytest.mark.parametrize("form", ["llama_3", "gemma"])
def test_roles_are_found_as_in_a_gguf_file(form: str, tmp_path: Path) -> None:
    """By the same tables: END_NAMES, think tags; and the ids that the configurations name, one or a list."""
    folder = folder_of(tmp_path / "model", form, eos_token_id=7)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9, 4000]}))
    (folder / "chat_template.jinja").write_text("{{ a }}<think>{{ b }}</think>")
    made = build_folder_tokenizer(folder)
    end = made.encode_inside("<|end|>")[0]
    assert made.eos_ids >= {7, 8, 9, end}
    assert 4000 not in made.eos_ids
    assert made.traits.think == ThinkTags("<think>", "</think>", made.encode_inside("</think>")[0])
    assert made.traits.roles.bos == {"llama_3": "<|begin|>", "gemma": "<bos>"}[form]
    assert made.traits.roles.chat_template.startswith("{{ a }}")
    assert made.pieces[end] == b"", "it is a control token, whatever its flag in the file"


@pytest.mark.parametrize(("name", "token", "text"), [("pad", 0, b"!"), ("pad", 7, b"("), ("eos", 7, b"(")])
def test_an_id_in_the_models_configuration_makes_no_text_a_control_token(name: str, token: int, text: bytes, tmp_path: Path) -> None:
    """As a Llama that was trained anew has them: LlamaConfig's ids 1 and 2, whatever they are in its tokenizer."""
    folder = folder_of(tmp_path / "model", "llama_3", **{f"{name}_token_id": token})
    (folder / "tokenizer_config.json").unlink()
    made = build_folder_tokenizer(folder)
    assert made.pieces[token] == text
    assert getattr(made.traits.roles, name) == text.decode(), "it is that token all the same"
    assert (token in made.eos_ids) == (name == "eos"), "and ends a text"
    for row in recorded("llama_3"):
        assert made.encode(row["text"]) == row["ids"], row["text"]


def test_rows_without_a_text_have_none(made: FolderTokenizer) -> None:
    assert len(made.pieces) == ROWS
    assert set(made.pieces[480:]) <= {b"", *made.pieces[480:495]}
    assert made.pieces[ROWS - 1] == b""


def test_an_added_token_without_a_row_is_text(tmp_path: Path) -> None:
    """Gemma 3 of 1B parameters has one for images, which the model does not see."""
    folder = folder_of(tmp_path / "model", "llama_3")
    document = json.loads((folder / "tokenizer.json").read_text())
    rows = max(one["id"] for one in document["added_tokens"])
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": rows}))
    made = build_folder_tokenizer(folder)
    assert max(made.encode("a</think>b")) < rows
    assert b"".join(made.pieces[token] for token in made.encode_inside("a</think>b")) == b"a</think>b"


def test_a_lone_surrogate_is_no_text(made: FolderTokenizer) -> None:
    for encode in (made.encode, made.encode_inside, made.encode_quoted):
        with pytest.raises(ValueError, match="character 1 is a lone surrogate, U\\+DC80"):
            encode("a\udc80")


def test_the_longest_token_bounds_a_text_from_below(made: FolderTokenizer) -> None:
    longest = made.traits.longest
    assert longest is not None
    for text in ("The sky is blue and the sea is blue too. " * 9, " " * 300, "\n" * 99, "небо" * 50):
        assert len(made.encode_inside(text)) * longest >= len(text.encode())


BASES: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [
        {"id": 4, "content": "<s>", "special": True, **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)}
    ],
    "normalizer": None,
    "pre_tokenizer": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {"C": 0, "G": 1, "T": 2, "GT": 3}, "merges": [["G", "T"]]},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}},
    },
}
"""A tokenizer of few letters, which drops all others."""


def few_letters(folder: Path) -> FolderTokenizer:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 8}))
    (folder / "tokenizer.json").write_text(json.dumps(BASES))
    return build_folder_tokenizer(folder)


def test_a_bos_comes_before_a_text_whatever_the_alphabet(tmp_path: Path) -> None:
    """A model of the bases of genes: its tokenizer knows no "a", of which nothing is left to tell before from after by."""
    made = few_letters(tmp_path / "model")
    assert made.encode("CGT") == [4, 0, 3]
    assert made.encode("a") == [4]
    assert made.traits.added == (1, 0)


def test_nothing_bounds_the_tokens_of_a_text_whose_letters_may_be_dropped(tmp_path: Path) -> None:
    made = few_letters(tmp_path / "model")
    assert made.encode_inside("a" * 100) == []
    assert made.traits.longest is None


# --- files that are wrong


def refused(folder: Path) -> str:
    with pytest.raises(ModelError) as error:
        build_folder_tokenizer(folder)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600
    return str(error.value)


Change = Callable[[dict[str, Any]], object]


def put(*keys: Any, value: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        *path, last = keys
        at: Any = document
        for key in path:
            at = at[key]
        at[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("model", value=5), "'model' must be of type BPE with a vocabulary"),
        (put("model", "type", value="Unigram"), "'model' must be of type BPE with a vocabulary; others are not implemented, got 'Unigram'"),
        (put("model", "vocab", value=[]), "'model' must be of type BPE with a vocabulary"),
        (put("model", "vocab", "new", value=5000), "the id of token 'new' must be an integer below the model's vocab_size 512, got 5000"),
        (put("model", "vocab", "new", value=-1), "the id of token 'new' must be an integer below"),
        (put("model", "vocab", "new", value=True), "the id of token 'new' must be an integer below"),
        (put("model", "vocab", "new", value=9), "token 9 must be one text, got"),
        (put("model", "vocab", "\udc80", value=500), "must be Unicode text"),
        (put("model", "merges", value=[["zz", "yy"]]), "is no tokenizer that can be used"),
        (put("model", "merges", value=5), "is no tokenizer that can be used"),
        (put("model", "dropout", value=0.5), "'dropout' must be null or 0"),
        (put("pre_tokenizer", value={"type": "New"}), "is no tokenizer that can be used"),
        (
            put("pre_tokenizer", value={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
            "is no tokenizer",
        ),
        (put("post_processor", "processors", 1, "special_tokens", value={}), "is no tokenizer that can be used"),
        (
            put("post_processor", "processors", 1, "special_tokens", "<|begin|>", "ids", value=[512]),
            "'post_processor' must put tokens below the model's 512 rows, got 512",
        ),
        (put("added_tokens", value=5), "'added_tokens' must be a list"),
        (put("added_tokens", 0, value=5), "'added_tokens' must hold objects"),
        (put("added_tokens", 0, "id", value="x"), "'added_tokens' must hold objects with an id"),
        (
            put("added_tokens", 0, "content", value="x" * ((1 << 20) + 1)),
            "'added_tokens' must have contents of at most 1048576 characters in all",
        ),
        (put("added_tokens", 0, "id", value=9), "token 9 must be one text"),
        (put("added_tokens", 0, "id", value=490), "the id of added token '<|begin|>' must be 399, got 490"),
        (put("added_tokens", 0, "special", value=1), "'added_tokens' must hold flags that are booleans"),
    ],
)
def test_a_wrong_tokenizer_json_is_refused_by_what_is_wrong(change: Change, said: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", "llama_3")
    document = json.loads((folder / "tokenizer.json").read_text())
    change(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    text = refused(folder)
    assert said in text
    assert text.startswith("tokenizer.json: ")


SPACES = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}


@pytest.mark.parametrize(
    ("form", "change", "said"),
    [
        ("llama_3", put("decoder", value={"type": "WordPiece", "prefix": "##", "cleanup": True}), "made of ByteLevel; others are not"),
        ("llama_2", put("decoder", value={"type": "BPEDecoder", "suffix": "</w>"}), "'decoder' must be made of Replace or Metaspace"),
        ("llama_2", put("decoder", "decoders", 0, "pattern", "String", value="_"), "'decoder' must be made of Replace or Metaspace"),
        (
            "llama_2",
            put("decoder", "decoders", 3, "stop", value=1),
            'Strip of a first space; others are not implemented, got \'{"type": "Strip',
        ),
        ("llama_2", put("model", "end_of_word_suffix", value="</w>"), "'end_of_word_suffix' must be null or empty"),
        (
            "llama_2",
            lambda document: document.update(decoder=None, pre_tokenizer={"type": "Whitespace"}),
            "'decoder' must be there to write the spaces that Whitespace drops",
        ),
    ],
)
def test_a_way_of_writing_tokens_that_is_not_ours_is_refused(form: str, change: Change, said: str, tmp_path: Path) -> None:
    """Else every answer of the model would be another text than transformers', without a word."""
    folder = folder_of(tmp_path / "model", form)
    document = json.loads((folder / "tokenizer.json").read_text())
    change(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    assert said in refused(folder)


@pytest.mark.parametrize(
    ("form", "decoder"),
    [
        ("llama_2", None),
        ("llama_2", {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}),
        ("gemma", {"type": "Sequence", "decoders": [SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]}),
        ("llama_3", None),
        (
            "llama_3",
            {"type": "Sequence", "decoders": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}, {"type": "Fuse"}]},
        ),
    ],
)
def test_ways_of_writing_tokens_that_come_to_the_same_are_taken(form: str, decoder: object, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", form)
    document = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**document, "decoder": decoder}))
    made = build_folder_tokenizer(folder)
    assert b"".join(made.pieces[token] for token in made.encode_inside("a b")) == b"a b"


def test_an_added_token_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    """The library would look for an empty text, and has no end of it in some."""
    folder = folder_of(tmp_path / "model", "gemma")
    document = json.loads((folder / "tokenizer.json").read_text())
    document["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    token = next(one for one in document["added_tokens"] if one["content"] == "\n\n")
    (folder / "tokenizer.json").write_text(json.dumps(document))
    build_folder_tokenizer(folder)
    token["normalized"] = True
    (folder / "tokenizer.json").write_text(json.dumps(document))
    assert "'normalizer' must leave something of added token '\\n\\n'" in refused(folder)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", None, "has no tokenizer.json: other forms of tokenizers are not read"),
        ("tokenizer.json", "{", "tokenizer.json: must be JSON"),
        ("tokenizer.json", "[" * 200000, "tokenizer.json: is nested too deep"),
        (
            "tokenizer.json",
            '{"pre_tokenizer": ' + '{"pretokenizers": [' * 400 + "]}" * 400 + "}",
            "tokenizer.json: 'model' must be of type BPE",
        ),
        ("tokenizer_config.json", '{"bos_token": 5}', "tokenizer_config.json: 'bos_token' must be a text, got 5"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"3": {"content": "other"}}}', "'3' is 'other'"),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"257": {"content": "he", "lstrip": 1}}}',
            "tokenizer_config.json: 'added_tokens_decoder' must hold flags that are booleans",
        ),
        ("tokenizer_config.json", '{"mask_token": {"content": "he", "lstrip": 1}}', "'mask_token' must hold flags that are booleans"),
        ("generation_config.json", '{"eos_token_id": "x"}', "generation_config.json: 'eos_token_id' must be a token's id"),
        ("config.json", "{}", "config.json: 'model_type' must be one of the supported"),
    ],
)
def test_a_wrong_file_is_named(file: str, content: str | None, said: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", "llama_3")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    assert said in refused(folder)


@settings(max_examples=120, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    seed=st.randoms(use_true_random=False),
    value=st.one_of(
        st.none(), st.booleans(), st.integers(-3, 600), st.text(max_size=3), st.just([]), st.just({}), st.just([[]]), st.just(1.5)
    ),
)
def test_whatever_a_part_of_it_becomes_it_is_used_or_refused(
    form: str, seed: Any, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"hurt-{form}"
    if not folder.exists():
        folder_of(folder, form)
    document = json.loads((GOLDEN / form / "tokenizer.json").read_text())
    at = document
    while True:
        key = seed.choice(list(at.keys()) if isinstance(at, dict) else range(len(at)))
        if not at[key] or not isinstance(at[key], dict | list) or seed.random() < 0.15:
            break
        at = at[key]
    at[key] = value
    (folder / "tokenizer.json").write_text(json.dumps(document))
    try:
        made = build_folder_tokenizer(folder)
    except ModelError as error:
        assert "\n" not in str(error)
    else:
        assert all(0 <= token < ROWS for token in made.encode("The sky <|end|> is") + made.encode_quoted(" the"))
