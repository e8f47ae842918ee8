"""Whether a model thinks, and between which tags: read off its file, or told."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.bundled import bundled_path
from tests.tools.vocab_files import CONTROL, NORMAL, alphabet, write_vocabulary

from quintet.backends.native.worker.load import load_tokenizer
from quintet.cli.console import OptionError
from quintet.cli.engines import parse_tags
from quintet.errors import ModelError
from quintet.inputs.think_tags import Tags, tags_of
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.traits import ThinkTags

BYTES = [*alphabet(), "zz"]
USER_DEFINED = 4


def tokenizer(path: Path, extra: dict[str, int], template: str = "", think: tuple[str, str] | None = None, skip: str = "") -> Tokenizer:
    """The bytes from id 0 on, ``zz``, and ``extra`` tokens, with their types, from id 257 on."""
    tokens = [f"<byte{at}>" if char in skip else char for at, char in enumerate(BYTES)]
    types = [NORMAL] * len(BYTES) + [*extra.values()]
    merges = ["z z"]
    return load_tokenizer(write_vocabulary(path / "v.gguf", [*tokens, *extra], types, pre="gpt-2", merges=merges, template=template), think)


BOTH = {"<think>": CONTROL, "</think>": CONTROL}


@pytest.mark.parametrize(
    ("extra", "template", "tags"),
    [
        ({}, "", None),
        ({}, "{{ messages }}", None),
        ({"<think>": CONTROL}, "", None),
        ({"</think>": NORMAL}, "...</think>...", None),
        (BOTH, "", ThinkTags("<think>", "</think>", 258)),
        (
            {"<|channel|>": CONTROL, "<|message|>": CONTROL, "<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL},
            "{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}",
            ThinkTags("<|channel|>analysis<|message|>", "<|end|>", 259),
        ),
        (BOTH, "<think> </think>", ThinkTags("<think>", "</think>", 258)),
        ({}, "{%- set content = content.split('</think>') %}<think>\n", ThinkTags("<think>", "</think>")),
        ({"[THINK]": CONTROL, "[/THINK]": CONTROL}, "", ThinkTags("[THINK]", "[/THINK]", 258)),
        ({}, "\u25c1think\u25b7 \u25c1/think\u25b7", ThinkTags("\u25c1think\u25b7", "\u25c1/think\u25b7")),
    ],
)
def test_the_template_or_the_vocabulary_tells(tmp_path: Path, extra: dict[str, int], template: str, tags: ThinkTags | None) -> None:
    assert tokenizer(tmp_path, extra, template).traits.think == tags


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
def test_tags_show_in_the_text_even_if_they_are_control_tokens(tmp_path: Path, kind: int) -> None:
    """Else a client could not tell the thinking from the answer. They are found in prompts as before."""
    made = tokenizer(tmp_path, {"<think>": kind, "</think>": kind, "<other>": CONTROL})
    assert [made.pieces[token] for token in (257, 258, 259)] == [b"<think>", b"</think>", b""]
    assert made.encode("a<think></think><other>") == [97, 257, 258, 259]


def test_a_tag_is_closed_by_its_own_token_or_by_those_that_spell_it(tmp_path: Path) -> None:
    def spelled(text: str) -> tuple[int, ...]:
        return tuple(BYTES.index(char) for char in text)

    assert tags_of(tokenizer(tmp_path, {})) is None
    whole = tags_of(tokenizer(tmp_path, BOTH))
    assert whole == Tags(b"<think>", b"</think>", (258, *spelled("/think>")))
    assert tags_of(tokenizer(tmp_path, {}, think=("<think>", "</think>"))) == Tags(b"<think>", b"</think>", spelled("</think>"))
    assert tags_of(tokenizer(tmp_path, {}, think=("a", "zzz"))) == Tags(b"a", b"zzz", (256, 256, BYTES.index("z")))


def test_what_is_told_overrides_the_file(tmp_path: Path) -> None:
    assert tokenizer(tmp_path, BOTH, think=("[a]", "[b]")).traits.think == ThinkTags("[a]", "[b]")


def test_a_tag_that_the_vocabulary_cannot_write_is_an_error_if_told_and_no_tag_if_found(tmp_path: Path) -> None:
    template = "<think> </think>"
    assert tokenizer(tmp_path, {}, template, skip="/").traits.think is None
    with pytest.raises(ModelError, match="no tokens to write the end of a think block with, got '</think>'"):
        tokenizer(tmp_path, {}, think=("<think>", "</think>"), skip="/")


def test_the_bundled_model_does_not_think_unless_it_is_told(tmp_path: Path) -> None:
    assert load_tokenizer(bundled_path()).traits.think is None
    told = tags_of(load_tokenizer(bundled_path(), ("<think>", "</think>")))
    assert told is not None and len(told.close) == len("</think>")
    assert tags_of(load_tokenizer(write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny", thinks=True)))) is not None


def test_the_option_takes_two_texts() -> None:
    assert parse_tags(None) is None
    assert parse_tags("<think>,</think>") == ("<think>", "</think>")


@pytest.mark.parametrize("text", ["", ",", "<think>", "<think>,", ",</think>", "a,b,c", "a,a", f"a,{'b' * 200}"])
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(OptionError, match="--think-tags must be a start and an end tag with a comma between them"):
        parse_tags(text)
