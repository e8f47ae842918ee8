"""Tokenising is llama.cpp's, id for id, on recorded strings; pieces, roles and errors are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.bundled import bundled_path
from tests.tools import vocab_files
from tests.tools.vocab_files import CONTROL, GOLDEN, NORMAL, alphabet, write_pairs, write_vocabulary

from quintet.errors import ModelError
from quintet.models.gguf import read_metadata
from quintet.models.metadata import Metadata
from quintet.models.pretokenizers import PRETOKENIZERS, RULES, Pretokenizer
from quintet.models.tokenizer import Tokenizer, build_tokenizer
from quintet.models.traits import Fim


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def load(path: Path) -> Tokenizer:
    return build_tokenizer(read_metadata(path))


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vocabularies")
    found = {name: vocab_files.unpack(name, folder) for name in ("smollm2", "qwen2")}
    tokens = [raw.decode() for raw in read_metadata(found["smollm2"]).strings("tokenizer.ggml.tokens")]
    found["pieces"] = vocab_files.write_ranked_pieces(folder / "pieces.gguf", tokens, 6000)
    found["tied"] = vocab_files.write_tied_pieces(folder / "tied.gguf")
    return found


@pytest.fixture(scope="session")
def tokenizers(vocabularies: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: load(path) for name, path in vocabularies.items()}


NAMES = ("smollm2", "qwen2", "pieces", "tied")

WORD = 128247
"""Qwen's ``</s>``: llama.cpp makes a control token of it, we leave it the word that the file says it is (``vocabulary.HTML``)."""


@pytest.mark.parametrize("name", NAMES)
def test_recorded_strings_get_the_ids_that_llama_cpp_gives_them(tokenizers: dict[str, Tokenizer], name: str) -> None:
    strings, ids = golden("tied_strings" if name == "tied" else "strings"), golden(name)["ids"]
    assert len(strings) == len(ids) >= (300 if name == "tied" else 700)
    rows = [(text, want) for text, want in zip(strings, ids, strict=True) if name != "qwen2" or WORD not in want]
    assert len(rows) > len(strings) - 20
    assert [(text, want) for text, want in rows if tokenizers[name].encode(text) != want] == []


@pytest.mark.parametrize("name", NAMES)
def test_tokens_with_a_role_are_those_of_llama_cpp(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer, roles = tokenizers[name], golden(name)["roles"]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (roles["bos"], roles["eos"])
    assert sorted(tokenizer.eos_ids | ({WORD} if name == "qwen2" else set())) == roles["end"]
    assert tokenizer.traits.fim == Fim(**{role: None if token < 0 else token for role, token in roles["fim"].items()})


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_tokens_that_llama_cpp_prints_as_nothing_have_no_bytes(tokenizers: dict[str, Tokenizer], name: str) -> None:
    silent = [token for token, piece in enumerate(tokenizers[name].pieces) if not piece]
    assert sorted([*silent, *([WORD] if name == "qwen2" else [])]) == golden(name)["silent"]


@pytest.mark.parametrize("name", NAMES)
def test_each_token_is_spelled_as_the_file_has_it(vocabularies: dict[str, Path], tokenizers: dict[str, Tokenizer], name: str) -> None:
    texts = [raw.decode() for raw in read_metadata(vocabularies[name]).strings("tokenizer.ggml.tokens")]
    assert [tokenizers[name].spelling(token) for token in range(len(texts))] == texts
    assert tokenizers[name].spelling(len(texts)) == ""


@pytest.mark.parametrize("name", ["qwen2", "pieces"])
def test_the_pieces_of_an_encoded_text_are_its_bytes(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer = tokenizers[name]
    for text in golden("strings"):
        if not any(special in text for special in ("<|", "<s>", "</s>", "<unk>", "\u2581")):
            joined = b"".join(tokenizer.pieces[token] for token in tokenizer.encode(text))
            assert joined == (f" {text}" if name == "pieces" and text else text).encode()


@pytest.mark.fault("A21")
@pytest.mark.parametrize("name", ["smollm2", "qwen2", "pieces"])
def test_quoted_text_has_no_control_token_and_else_the_same_ids(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer = tokenizers[name]
    control = {token for token in tokenizer.special if not tokenizer.pieces[token]}
    for text in golden("strings"):
        quoted, ids = tokenizer.encode_quoted(text), tokenizer.encode(text)
        assert not control.intersection(quoted)
        own = ids[tokenizer.traits.added[0] : len(ids) - tokenizer.traits.added[1]]
        if not control.intersection(own):
            assert quoted == own
        elif name == "qwen2":
            assert b"".join(tokenizer.pieces[token] for token in quoted) == text.encode()


def test_the_patterns_of_every_pre_tokenizer_cut_as_llama_cpp_does(tmp_path: Path) -> None:
    recorded = golden("patterns")
    assert set(recorded["names"]) == set(PRETOKENIZERS)
    for rules_names in RULES:
        for name in (rules_names[0], rules_names[-1]):
            tokenizer = load(write_pairs(tmp_path / "pairs.gguf", name))
            wants = [results[pick] for results, pick in zip(recorded["results"], recorded["names"][name], strict=True)]
            got = [tokenizer.encode(text) for text in recorded["strings"]]
            assert got == wants, name


def test_the_recorded_patterns_tell_any_two_different_pre_tokenizers_apart() -> None:
    """Otherwise the test above could not fail for one that is confused with another."""
    recorded = golden("patterns")
    results = {tuple(recorded["names"][names[0]]) for names in RULES}
    assert len(results) == len(RULES) == len(set(RULES.values()))


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_words_joined_are_the_text(name: str) -> None:
    split = Pretokenizer(PRETOKENIZERS[name].stages).split
    for text in golden("patterns")["strings"]:
        words = split(text)
        assert "".join(words) == text
        assert all(words)


def test_the_real_model_file_has_the_recorded_tokenizer(tokenizers: dict[str, Tokenizer]) -> None:
    real = load(bundled_path())
    assert real.pieces == tokenizers["smollm2"].pieces
    assert [real.encode(text) for text in golden("strings")] == golden("smollm2")["ids"]


def test_a_lone_surrogate_is_a_value_error_that_says_where(tokenizers: dict[str, Tokenizer]) -> None:
    for tokenizer in tokenizers.values():
        with pytest.raises(ValueError, match=r"character 2 is a lone surrogate, U\+D83D"):
            tokenizer.encode("ab\ud83d")


def test_the_cache_of_words_changes_nothing(vocabularies: dict[str, Path]) -> None:
    tokenizer = load(vocabularies["smollm2"])
    first = [tokenizer.encode(text) for text in golden("strings")]
    for i in range(40_000):  # more different words than the cache holds
        tokenizer.encode(f"w{i}")
    assert [tokenizer.encode(text) for text in reversed(golden("strings"))] == first[::-1]


LETTERS = [*alphabet(), "zz"]
MERGES = ["z z"]  # the file format's writer leaves out an empty array
TYPES = [NORMAL] * len(LETTERS)


def tiny(path: Path, extra: list[str], types: list[int], **more: Any) -> Tokenizer:
    """The bytes, a token that joins two, and ``extra`` tokens from id 257 on."""
    return load(write_vocabulary(path / "v.gguf", LETTERS + extra, TYPES + types, pre="gpt-2", merges=MERGES, **more))


def test_bos_and_eos_are_added_only_if_the_metadata_asks(tmp_path: Path) -> None:
    specials = ["<s>", "<e>"], [CONTROL, CONTROL]
    ids = {"bos_token_id": 257, "eos_token_id": 258}
    assert tiny(tmp_path, *specials, ids=ids).encode("a") == [97]
    both = tiny(tmp_path, *specials, ids=ids, flags={"add_bos_token": True, "add_eos_token": True})
    assert both.encode("a<s>") == [257, 97, 257, 258]
    assert both.encode("") == [257, 258]
    with pytest.raises(ModelError, match=r"'tokenizer.ggml.bos_token_id' is missing, but"):
        tiny(tmp_path, *specials, flags={"add_bos_token": True})


def test_a_padding_token_that_there_is_not_is_none(tmp_path: Path) -> None:
    """The model of llama.cpp's server tests has -1 in 32 bits there."""
    for token, pad in ((256, "zz"), (257, ""), ((1 << 32) - 1, "")):
        assert tiny(tmp_path, [], [], ids={"padding_token_id": token}).traits.roles.pad == pad


def test_an_end_token_is_known_by_name_even_if_typed_as_text(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, ["<|im_end|>", "<|fim_pad|>"], [NORMAL, NORMAL])
    assert tokenizer.eos_ids == {257, 258}
    assert tokenizer.pieces[257] == tokenizer.pieces[258] == b""
    assert tokenizer.encode("a<|im_end|>") == [97, 257]
    assert tokenizer.eos_id is None


@pytest.mark.parametrize(("how", "more"), [("typed", {}), ("named", {"ids": {"eos_token_id": 257}})])
def test_the_end_of_what_html_strikes_out_is_an_end_only_where_the_file_says_so(tmp_path: Path, how: str, more: dict[str, Any]) -> None:
    """Qwen's vocabulary has it as a word: ``<s>apple</s>`` is text there, as it is to transformers."""
    word = tiny(tmp_path, ["</s>", "<|im_end|>"], [NORMAL, CONTROL])
    assert ({*word.eos_ids}, word.pieces[257], word.encode("</s>")) == ({258}, b"</s>", list(b"</s>"))
    end = tiny(tmp_path, ["</s>", "<|im_end|>"], [CONTROL if how == "typed" else NORMAL, CONTROL], **more)
    assert ({*end.eos_ids}, end.pieces[257], end.encode("</s>")) == ({257, 258}, b"", [257])


def test_harmony_keeps_its_end_of_message_and_shows_its_channel_names(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, ["<|return|>", "<|call|>", "<|end|>", "<|channel|>"], [CONTROL] * 4)
    assert tokenizer.eos_ids == {257, 258}
    assert tokenizer.pieces[259:] == [b"<|end|>", b"<|channel|>"]


def test_phi_3_drops_white_space_after_its_special_tokens(tmp_path: Path) -> None:
    specials = ["<|user|>", "<|endoftext|>"], [CONTROL, CONTROL]
    assert tiny(tmp_path, *specials, name="Phi-3 mini").encode("<|user|> \n a<|endoftext|> ") == [257, 97, 258, 32]
    assert tiny(tmp_path, *specials, name="other").encode("<|user|> a") == [257, 32, 97]


def test_a_byte_without_a_token_gives_nothing_and_keeps_its_neighbours_apart(tmp_path: Path) -> None:
    tokens = [letter for letter in LETTERS if letter != "x"] + ["ab"]
    path = write_vocabulary(tmp_path / "v.gguf", tokens, pre="gpt-2", merges=["a b"])
    joined, a, b = len(tokens) - 1, tokens.index("a"), tokens.index("b")
    assert load(path).encode("ab") == [joined]
    assert load(path).encode("axb") == [a, b]


BAD: list[tuple[str, Any, str]] = [
    ("tokenizer.ggml.model", None, "is missing"),
    ("tokenizer.ggml.model", "bert", "must be one of the supported gpt2"),
    ("tokenizer.ggml.model", 3, "must be a string, got 3"),
    ("tokenizer.ggml.pre", "no-such", "must be one of the supported default, llama3"),
    ("tokenizer.ggml.tokens", None, "is missing"),
    ("tokenizer.ggml.tokens", 5, "must be an array of strings, got 5"),
    ("tokenizer.ggml.token_type", 5, "must be an array of numbers"),
    ("tokenizer.ggml.merges", None, "is missing"),
    ("tokenizer.ggml.eos_token_id", 999, "must be an integer from 0 to 256, got 999"),
    ("tokenizer.ggml.eos_token_id", -1, "must be an integer from 0 to 256, got -1"),
    ("tokenizer.ggml.fim_pre_token_id", "x", "must be an integer"),
    ("tokenizer.ggml.padding_token_id", -1, "must be an integer from 0 to 4294967295, got -1"),
    ("tokenizer.ggml.add_bos_token", 1, "must be a boolean, got 1"),
    ("tokenizer.ggml.suppress_tokens", 5, "asks for something that is not implemented, got 5"),
    ("general.name", 1, "must be a string"),
]


@pytest.mark.parametrize(("key", "value", "says"), BAD)
def test_a_missing_or_wrong_key_is_one_clear_line(tmp_path: Path, key: str, value: Any, says: str) -> None:
    meta = read_metadata(write_vocabulary(tmp_path / "v.gguf", LETTERS, pre="gpt-2", merges=MERGES))
    values = {name: meta.get(name) for name in meta if name != key} | ({key: value} if value is not None else {})
    with pytest.raises(ModelError) as error:
        build_tokenizer(Metadata("v.gguf", values))
    assert str(error.value).startswith(f"v.gguf: '{key}' {says}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"merges": ["a"]}, "'tokenizer.ggml.merges' must each join two tokens"),
        ({"merges": ["a b"]}, "'tokenizer.ggml.merges' must each join two tokens"),
        ({"merges": ["a nope"]}, "'tokenizer.ggml.merges' must each join two tokens"),
        ({"tokens": [*LETTERS, "a"]}, "'tokenizer.ggml.tokens' must not list a text twice, got 'a'"),
        ({"tokens": [*LETTERS, "y" * 300], "types": [*TYPES, CONTROL]}, "must not have a special token of over 256 characters"),
        ({"types": TYPES[1:]}, "'tokenizer.ggml.token_type' must have 257 entries, got 256"),
        ({"model": "llama", "scores": [0.0] * 257}, "must have a token for every byte, but <0x00> is missing"),
        ({"model": "llama", "scores": [0.0] * 9}, "'tokenizer.ggml.scores' must have 257 entries, got 9"),
        ({"model": "llama", "scores": [float("nan")] * 257}, "'tokenizer.ggml.scores' must hold finite numbers"),
    ],
)
def test_an_inconsistent_vocabulary_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    values: dict[str, Any] = {"tokens": LETTERS, "merges": MERGES, "pre": "gpt-2"} | change
    with pytest.raises(ModelError) as error:
        load(write_vocabulary(tmp_path / "v.gguf", **values))
    assert says in str(error.value)


def test_a_token_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", [*LETTERS, "qqqq"], pre="gpt-2", merges=MERGES)
    path.write_bytes(path.read_bytes().replace(b"qqqq", b"qq\xffq"))
    with pytest.raises(ModelError, match=r"'tokenizer.ggml.tokens' must hold UTF-8 texts only"):
        load(path)


def test_a_token_with_a_nul_is_refused_where_the_library_does_not_take_it(tmp_path: Path) -> None:
    path = vocab_files.write_sentence_pieces(tmp_path / "v.gguf", ["a", "qqqq"], [0.0, 0.0])
    path.write_bytes(path.read_bytes().replace(b"qqqq", b"qq\0q"))
    with pytest.raises(ModelError, match=r"'tokenizer.ggml.tokens' must not hold a NUL, got 'qq\\x00q'"):
        load(path)


def test_an_empty_token_has_a_name_of_its_own(tmp_path: Path) -> None:
    assert tiny(tmp_path, [""], [NORMAL]).encode("[EMPTY_257]") != []
