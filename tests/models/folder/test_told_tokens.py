"""tokenizer_config.json tells of tokens too: which are control tokens, and how their texts are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.models.folder.test_folder_tokenizer import folder_of

from quintet.errors import ModelError
from quintet.models.folder.tokenizer import build_folder_tokenizer

PLAIN = {"content": "he", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False}


@pytest.mark.parametrize(
    ("told", "spaced"),
    [
        ({"additional_special_tokens": ["he"]}, True),
        ({"additional_special_tokens": [{**PLAIN, "lstrip": True, "__type": "AddedToken"}]}, False),
        ({"extra_special_tokens": {"a_token": "he"}}, True),
        ({"mask_token": "he"}, True),
        ({"pad_token": {**PLAIN, "lstrip": True}}, False),
        ({"added_tokens_decoder": {"257": PLAIN}}, True),
        ({"added_tokens_decoder": {"257": {**PLAIN, "lstrip": True}}}, False),
        ({"added_tokens_decoder": {"257": {"content": "he", "special": True}}}, True),
    ],
)
def test_what_the_other_file_tells_of_a_token_counts(told: dict[str, Any], spaced: bool, tmp_path: Path) -> None:
    """As transformers 5.24 reads it: a text that merges lead to is found before them then, with the flags that are told of it there.

    Args:
        spaced: the space before it is left.
    """
    folder = folder_of(tmp_path / "model", "llama_3")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    space, t, he = (build_folder_tokenizer(folder).encode_inside(text)[0] for text in (" ", "t", "he"))
    assert he == 257
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **told}))
    made = build_folder_tokenizer(folder)
    assert made.encode_inside("the he") == [t, he, *([space] if spaced else []), he]
    plain = told.get("added_tokens_decoder", {}).get("257", {}).get("special") is False
    assert made.pieces[he] == (b"he" if plain else b"")


def test_texts_of_control_tokens_that_must_not_be_recognised_are_refused_by_name(tmp_path: Path) -> None:
    """transformers has ``<|end|>`` in a prompt be text like any other then."""
    folder = folder_of(tmp_path / "model", "llama_3")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for value in (False, None, True):
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "split_special_tokens": value}))
        if not value:
            build_folder_tokenizer(folder)
    with pytest.raises(ModelError, match="^tokenizer_config.json: 'split_special_tokens' must be false or left out; .* got true"):
        build_folder_tokenizer(folder)


def test_flags_of_the_other_file_go_before_those_of_tokenizer_json(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", "llama_3")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    made = build_folder_tokenizer(folder)
    a, end, b = (made.encode_inside(text)[0] for text in ("a", "<|end|>", "b"))
    assert len(made.encode_inside("a <|end|> b")) > 3
    told = {**PLAIN, "content": "<|end|>", "special": True, "lstrip": True, "rstrip": True}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "added_tokens_decoder": {str(end): told}}))
    assert build_folder_tokenizer(folder).encode_inside("a <|end|> b") == [a, end, b]
