"""Tokenising against simple, slow oracles, and on text made to be slow. A quadratic step would run into the test time-out."""

from __future__ import annotations

import itertools
import re
import tracemalloc
import unicodedata
from array import array
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools import vocab_files
from tests.tools.vocab_files import CHARACTERS, alphabet

from quintet.models import special as models_special
from quintet.models import tokenizer as models_tokenizer
from quintet.models import unicode_classes as classes
from quintet.models.gguf import read_metadata
from quintet.models.metadata import LENGTH_BYTES, Metadata, StringArray
from quintet.models.pretokenizers import RULES, Pretokenizer, Stage, class_of, collapse
from quintet.models.special import MAX_LENGTH, Specials
from quintet.models.spm import SentencePiece
from quintet.models.texts import Merges, Texts
from quintet.models.tokenizer import Tokenizer, build_tokenizer
from quintet.models.traits import Fim
from quintet.models.vocabulary import Vocabulary

SIZE = 200_000


RUNS = ["A", " ", "\n", ".", "0", "\u65e5", "\u0301", "\xe9A", "a ", " .", " \n", "'s", "<|", "a\u2581"]


def hostile(size: int) -> dict[str, str]:
    """Texts of about ``size`` bytes that tempt a tokenizer to look at the same character again and again."""
    texts = {run: run * (size // len(run.encode())) for run in RUNS}
    texts["spaces, then a letter"] = " " * size + "x"
    texts["wide spaces, then a dot"] = "\u3000" * (size // 3) + "."
    texts["runs of spaces"] = (" " * 999 + "x") * (size // 1000)
    texts["characters without a token"] = "a\ue000" * (size // 4)
    texts["one of each"] = "".join(CHARACTERS) * (size // 100)
    return texts


@pytest.mark.fault("B04")
@pytest.mark.timeout(30)  # a hundred times what it takes; a quadratic pattern takes far more
@pytest.mark.parametrize("stage", {stage: None for rules in RULES.values() for stage in rules.stages}, ids=lambda stage: stage.pattern[:20])
def test_cutting_takes_linear_time_on_any_text(stage: Stage) -> None:
    split = Pretokenizer((stage,)).split
    for text in hostile(SIZE).values():
        assert "".join(split(text)) == text


@cache
def tokenizer(name: str, folder: str) -> Tokenizer:
    path = Path(folder) / f"{name}.gguf"
    if name == "pieces":
        tokens = read_metadata(vocab_files.unpack("smollm2", Path(folder))).texts("tokenizer.ggml.tokens")
        vocab_files.write_ranked_pieces(path, tokens, 6000)
    elif name == "tied":
        vocab_files.write_tied_pieces(path)
    else:
        path = vocab_files.unpack(name, Path(folder))
    return build_tokenizer(read_metadata(path))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("hostile"))


@pytest.mark.fault("B04")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["qwen2", "pieces"])
def test_encoding_takes_linear_time_on_any_text(folder: str, name: str) -> None:
    tokens = tokenizer(name, folder)
    for run, text in hostile(SIZE // 2).items():
        ids = tokens.encode(text)
        if not set(ids) & tokens.special and "\u2581" not in text:
            joined = b"".join(tokens.pieces[token] for token in ids)
            assert joined == (f" {text}" if name == "pieces" else text).encode(), run


def test_repetition_does_not_change_what_a_long_run_becomes(folder: str) -> None:
    """A run of 100 kB is cut into the same longest tokens as a short one."""
    tokens = tokenizer("qwen2", folder)
    for run in ("A", " ", "=", "-"):
        assert set(tokens.encode(run * SIZE)[10:-10]) <= set(tokens.encode(run * 1024))


class Recorder:
    """Stands before the core, and notes how long each word is that it is given while it holds the interpreter."""

    def __init__(self, merges: Merges) -> None:
        self.merges, self.lengths = merges, [0]
        self.encode_long = merges.encode_long

    def encode(self, word: bytes) -> list[int]:
        self.lengths.append(len(word))
        return self.merges.encode(word)


@pytest.mark.fault("B04")
@pytest.mark.parametrize("name", ["qwen2", "smollm2"])
def test_a_long_word_is_merged_without_holding_the_interpreter_and_to_the_same_tokens(
    folder: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokenizer(name, folder)
    recorder = Recorder(tokens._encoder._merges)  # type: ignore[attr-defined]
    monkeypatch.setattr(tokens._encoder, "_merges", recorder)
    for text in hostile(4 * models_tokenizer.LONG_WORD).values():
        monkeypatch.setattr(models_tokenizer, "LONG_WORD", 4096)
        apart = tokens.encode(text)
        assert max(recorder.lengths) <= models_tokenizer.LONG_WORD
        monkeypatch.setattr(models_tokenizer, "LONG_WORD", 1 << 30)
        assert apart == tokens.encode(text)
        recorder.lengths = [0]


@pytest.mark.fault("B01")
@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.sampled_from([*CHARACTERS, *RUNS, "<|im_start|>", "\x04", "\x13", " " * 90, "="]), max_size=40).map("".join))
@pytest.mark.parametrize("name", ["smollm2", "qwen2", "pieces", "tied"])
def test_no_token_takes_more_of_a_text_than_the_longest_may(folder: str, name: str, text: str) -> None:
    """What is refused by its bytes alone could not have fitted; SmolLM2 drops bytes that it has no token for."""
    tokens = tokenizer(name, folder)
    assert tokens.traits.longest is not None
    kept = len(text.encode().translate(None, tokens.traits.dropped))
    assert kept <= tokens.traits.longest * len(tokens.encode_inside(text))


def laid_out(texts: Iterable[str]) -> StringArray:
    """As they lie in a model file."""
    raw = [text.encode() for text in texts]
    data = b"".join(len(one).to_bytes(LENGTH_BYTES, "little") + one for one in raw)
    return StringArray(memoryview(data), array("q", itertools.accumulate(LENGTH_BYTES + len(one) for one in raw)))


def slow_pieces(text: str, ids: dict[str, int], scores: list[float]) -> list[int]:
    """SentencePiece joining by the book: look at all neighbours, join the best and leftmost, repeat."""
    pieces = list(text)
    while joins := [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in ids]:
        at = min(joins)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    spelled = [[piece] if piece in ids else [f"<0x{byte:02X}>" for byte in piece.encode()] for piece in pieces]
    return [ids[name] for names in spelled for name in names]


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("aab  \u2581\u65e5\xe9"), max_size=60))
def test_joins_are_the_best_and_leftmost_even_among_equal_scores(folder: str, text: str) -> None:
    tokens = tokenizer("tied", folder)
    want = slow_pieces(text.replace(" ", "\u2581"), *_tied(folder))
    assert tokens.encode(text) == [1, *want, 2]


@settings(max_examples=300, deadline=None)
@given(
    words=st.dictionaries(
        st.text("ab\u2581\u65e5\xe9\U0001f44d<0x41>", min_size=1, max_size=6), st.integers(-3, 2), min_size=1, max_size=40
    ),
    text=st.text("ab \u2581\u65e5\xe9\U0001f44d<0x41>\0\ue000\n", max_size=60),
)
def test_joins_are_right_in_any_vocabulary_even_of_characters_that_have_no_token(words: dict[str, int], text: str) -> None:
    ids = {token: i for i, token in enumerate(dict.fromkeys([*vocab_files.byte_tokens(), *words]))}
    scores = [float(words.get(token, 0)) for token in ids]
    meta = Metadata("v.gguf", {"tokenizer.ggml.scores": memoryview(array("f", scores)), "tokens": laid_out(ids)})
    encoder = SentencePiece(meta, Vocabulary(Texts(meta, "tokens"), bytearray(), Fim(), frozenset(), None))
    assert encoder.encode(text, after_special=False) == slow_pieces(text.replace(" ", "\u2581"), ids, scores)


@cache
def _tied(folder: str) -> tuple[dict[str, int], list[float]]:
    meta = read_metadata(Path(folder) / "tied.gguf")
    ids = {token: i for i, token in enumerate(meta.texts("tokenizer.ggml.tokens"))}
    return ids, np.asarray(meta.get("tokenizer.ggml.scores")).tolist()


@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.sampled_from([*CHARACTERS, "the ", "ing", "\x04", "\x13", "   "]), max_size=40).map("".join))
def test_merges_are_by_rank_and_never_over_a_byte_without_a_token(folder: str, text: str) -> None:
    """SmolLM2's vocabulary lacks some bytes."""
    tokens = tokenizer("smollm2", folder)
    ids, ranks = _smollm2(folder)
    words = Pretokenizer(RULES[next(names for names in RULES if "smollm" in names)].stages).split(text)
    want = []
    for word in words:
        pieces = [alphabet()[byte] for byte in word.encode()]
        while joins := [(ranks[pair], i) for i, pair in enumerate(itertools.pairwise(pieces)) if pair in ranks]:
            at = min(joins)[1]
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        want += [ids[piece] for piece in pieces if piece in ids]
    assert tokens.encode(text) == want


@cache
def _smollm2(folder: str) -> tuple[dict[str, int], dict[tuple[str, ...], int]]:
    meta = read_metadata(Path(folder) / "smollm2.gguf")
    ids = {token: i for i, token in enumerate(meta.texts("tokenizer.ggml.tokens"))}
    return ids, {tuple(merge.split(" ")): i for i, merge in enumerate(meta.texts("tokenizer.ggml.merges"))}


def slow_cut(text: str, specials: list[tuple[str, int]], strip: frozenset[int]) -> list[str | int]:
    """llama.cpp's way: for each special text, longest first, split every piece of text that is left at it."""
    parts: list[str | int] = [text] if text else []
    for special, token in sorted(specials, key=lambda item: -len(item[0].encode())):
        found: list[str | int] = []
        for part in parts:
            while isinstance(part, str) and special in part:
                left, _, part = part.partition(special)
                found += [*([left] if left else []), token]
                if token in strip:
                    part = part.lstrip(" \t\n\v\f\r")
            found += [part] if part != "" else []
        parts = found
    return parts


@settings(max_examples=500, deadline=None)
@given(
    texts=st.lists(st.text("ab<", min_size=1, max_size=5) | st.integers(1, 5).map("a".__mul__), unique=True, max_size=6),
    text=st.text("ab< \n", max_size=40) | st.text("aaab", max_size=40),
    strip=st.frozensets(st.integers(0, 5)),
)
def test_special_texts_are_taken_longest_first(texts: list[str], text: str, strip: frozenset[int]) -> None:
    if len({len(one) for one in texts}) == len(texts):  # equal lengths have no defined order
        specials = [(one, i) for i, one in enumerate(texts)]
        assert list(Specials(specials, strip).cut(text)) == slow_cut(text, specials, strip)


def test_special_texts_may_nest_as_deep_as_they_may_be_long() -> None:
    specials = Specials([("a" * n, n) for n in range(1, MAX_LENGTH + 1)])
    assert list(specials.cut("a" * (2 * MAX_LENGTH + 3))) == [MAX_LENGTH, MAX_LENGTH, 3]


@pytest.mark.fault("B04")
@pytest.mark.parametrize("text", [" " * 20_000, "".join(" " * (number % 40) + "x" for number in range(1000))], ids=["one run", "many"])
def test_special_texts_that_nest_take_memory_for_one_at_each_character(text: str) -> None:
    """Runs of spaces are such texts in Gemma's vocabulary, of each length up to 31."""
    specials = Specials([(" " * n, n) for n in range(2, 32)])
    tracemalloc.start()
    try:
        assert "".join(part if isinstance(part, str) else " " * part for part in specials.cut(text)) == text
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150 * len(text)


@pytest.mark.fault("B04")
def test_a_text_full_of_special_tokens_is_cut_without_sorting_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else runs in the process while millions are sorted."""
    specials, sizes = Specials([("<b>", 1), ("a", 2)]), [0]

    def noting(values: Iterable[int]) -> list[int]:
        made = sorted(values)
        sizes.append(len(made))
        return made

    monkeypatch.setattr(models_special, "sorted", noting, raising=False)
    assert list(specials.cut("a<b>" * 500)) == [2, 1] * 500
    assert max(sizes) <= 2


@pytest.mark.fault("B04")
def test_a_text_full_of_almost_special_tokens_takes_linear_time() -> None:
    specials = Specials([(f"<|reserved_special_token_{i}|>", i) for i in range(2000)])
    for text in ("<|reserved_special_token_" * 4000, "<|" * 50_000, "<|reserved_special_token_1|>" * 4000):
        assert "".join(part if isinstance(part, str) else "<|reserved_special_token_1|>" for part in specials.cut(text)) == text


def test_classes_agree_with_this_pythons_unicode_where_that_knows_the_character() -> None:
    """The table is Unicode 15.1; Python 3.11 knows 14. Categories of assigned characters do not change between them."""
    letter = {"L": classes.LETTER, "N": classes.NUMBER, "P": classes.PUNCTUATION, "S": classes.SYMBOL, "M": classes.MARK}
    wrong = []
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        want = classes.SPACE if re.match(r"[^\S\x1c-\x1f]", chr(code)) else letter.get(category[0], classes.OTHER)
        if category != "Cn" and class_of(code) != want:
            wrong.append(hex(code))
    assert wrong == []


@given(text=st.text(max_size=50))
def test_collapsed_text_has_one_byte_per_character_and_keeps_ascii(text: str) -> None:
    collapsed = np.frombuffer(collapse(text), np.uint8)
    assert len(collapsed) == len(text)
    assert [chr(byte) for byte, char in zip(collapsed, text, strict=True) if char < "\x80"] == [char for char in text if char < "\x80"]
