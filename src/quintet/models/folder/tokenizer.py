"""Text to token ids as tokenizer.json says it, through ``tokenizers``, whose file it is: the ids of transformers' ``AutoTokenizer``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from quintet.errors import ModelError, shorten
from quintet.models.folder.files import TOKENIZER
from quintet.models.folder.vocabulary import Added, Files, read_files
from quintet.models.metadata import Metadata
from quintet.models.pieces import Pieces
from quintet.models.tokenizer import require_unicode, settle_think
from quintet.models.traits import Roles, Traits
from quintet.models.vocabulary import (
    PREFIX,
    SPACE_MARK,
    TEMPLATE,
    TokenType,
    Vocabulary,
    byte_alphabet,
    byte_level_pieces,
    read_vocabulary,
    sentence_pieces,
)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the library's threads: one text has no use for them

BYTE_LEVEL_WRITING = ("Sequence", "ByteLevel", "ByteFallback", "Fuse")
"""Steps of a decoder that leave the bytes which a byte-level vocabulary's letters stand for."""

DROPS_SPACES = ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit")
"""Steps before merging of which nobody can see in the tokens where there was a space."""

KEEPS_LENGTH = ("ByteLevel", "Split", "Digits", "Metaspace", "Sequence", "Replace", "Prepend")
"""Steps before merging that drop nothing of a text, if they do as asked below."""


class FolderTokenizer:
    """The tokenizer of a folder; its members are those of ``Tokenizer``."""

    def __init__(self, files: Files, vocabulary: Vocabulary) -> None:
        document = files.document
        whole = _load(document, files.added)
        steps = (*_steps(document, "pre_tokenizer"), *_steps(document, "decoder"))
        byte_level = any(step.get("type") == "ByteLevel" for step in steps)
        _check_writing(document, byte_level)
        self.pieces = _pieces(vocabulary, byte_level)
        self.eos_ids = vocabulary.eos_ids | files.ends
        added = [replace(one, special=vocabulary.types[one.id] == TokenType.CONTROL) for one in files.added]
        self._plain = _sharing(document, whole, added)
        self._inside = _sharing(_without_prefix(document), whole, added)
        self._quoted = _sharing(document, whole, added)
        self._quoted.encode_special_tokens = True
        roles = _roles(files.metadata, vocabulary)
        self._before, self._after = self._around(whole, self.pieces)
        self.traits = Traits(
            added=(len(self._before), len(self._after)),
            fim=vocabulary.fim,
            think=vocabulary.think,
            roles=roles,
            longest=_longest(document, files.added, vocabulary, byte_level),
            dropped=_dropped(vocabulary) if byte_level else b"",
        )

    def encode(self, text: str) -> list[int]:
        """Prompt text to ids: texts of special tokens are recognised, and what the files ask for is put before and after.

        Raises:
            ValueError: the text holds a lone surrogate, so it is not Unicode text.
        """
        return [*self._before, *_encode(self._plain, text), *self._after]

    def encode_inside(self, text: str) -> list[int]:
        """Ids of text that stands inside a longer one: neither BOS, EOS nor a space is added.

        Raises:
            ValueError: as for ``encode``.
        """
        return _encode(self._inside, text)

    def encode_quoted(self, text: str) -> list[int]:
        """Ids of text in which a control token's text is text like any other: neither BOS nor EOS is added.

        Raises:
            ValueError: as for ``encode``.
        """
        return _encode(self._quoted, text)

    def spelling(self, token: int) -> str:
        """How the vocabulary itself writes a token; empty for an id beyond it."""
        return self._plain.id_to_token(token) or ""

    @staticmethod
    def _around(whole: tokenizers.Tokenizer, pieces: Pieces) -> tuple[list[int], list[int]]:
        """Ids before and after every text, as tokenizer.json's last step puts them there. transformers heeds no other file for this."""
        without: list[int] = []
        found: list[int] = []
        for text in chain(("a",), (str(piece, "utf-8", "ignore") for piece in pieces)):  # some alphabets have no "a": bases, amino acids
            with _one_line():
                without, found = whole.encode(text, add_special_tokens=False).ids, whole.encode(text, add_special_tokens=True).ids
            if without:
                break
        if beyond := [token for token in found if token >= len(pieces)]:
            raise ModelError(f"{TOKENIZER}: 'post_processor' must put tokens below the model's {len(pieces)} rows, got {beyond[0]}.")
        for start in range(len(found) - len(without) + 1):
            if found[start : start + len(without)] == without:
                return found[:start], found[start + len(without) :]
        raise ModelError(f"{TOKENIZER}: 'post_processor' must put tokens before and after a text only.")


def build_folder_tokenizer(folder: Path, think: tuple[str, str] | None = None, *, any_model: bool = False) -> FolderTokenizer:
    """The tokenizer of a folder.

    Args:
        think: the tags around the model's thinking; ``None`` = those that the files tell of.
        any_model: see ``read_files``.

    Raises:
        ModelError: a file is missing or damaged, or asks for something that is not implemented; or such a tag cannot be written with
            the vocabulary.
    """
    files = read_files(folder, any_model=any_model)
    made = FolderTokenizer(files, read_vocabulary(files.metadata, think))
    made.traits = settle_think(made, files.metadata, think)
    return made


def _encode(library: tokenizers.Tokenizer, text: str) -> list[int]:
    require_unicode(text)
    with _one_line():
        # Of its calls one that lets other threads run.
        (encoding,) = library.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
    return ids


def _load(document: dict[str, Any], added: tuple[Added, ...]) -> tokenizers.Tokenizer:
    """The library's tokenizer of the file as it is, but for tokens that the model has no rows for.

    Raises:
        ModelError: the library refuses it, or counts otherwise than the file.
    """
    kept = {one.id for one in added}
    entries = [entry for entry in document.get("added_tokens", []) if entry["id"] in kept]
    model = document["model"]
    if model.get("dropout"):
        raise ModelError(f"{TOKENIZER}: 'dropout' must be null or 0: ids would be drawn by chance, got {shorten(model['dropout'])}.")
    made = _parse({**document, "added_tokens": entries, "truncation": None, "padding": None})
    for one in added:
        if made.token_to_id(one.content) != one.id:
            raise ModelError(
                f"{TOKENIZER}: the id of added token {shorten(one.content)} must be {made.token_to_id(one.content)}, got {one.id}."
            )
        if one.normalized and not _normalised(made, one.content):  # the library finds it everywhere, and in some texts for ever
            raise ModelError(f"{TOKENIZER}: 'normalizer' must leave something of added token {shorten(one.content)}.")
    return made


def _normalised(library: tokenizers.Tokenizer, text: str) -> str:
    with _one_line():
        found: str = text if library.normalizer is None else library.normalizer.normalize_str(text)
    return found


def _parse(document: dict[str, Any]) -> tokenizers.Tokenizer:
    with _one_line():
        return tokenizers.Tokenizer.from_str(json.dumps(document))


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turn what the library raises, bare ``Exception`` and its panics, which are none, into one clear line.

    Raises:
        ModelError: instead of any of them.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"{TOKENIZER}: is no tokenizer that can be used ({shorten(str(error), 160)}).") from None


def _sharing(document: dict[str, Any], whole: tokenizers.Tokenizer, added: list[Added]) -> tokenizers.Tokenizer:
    """Another tokenizer over the same vocabulary and merges, which are there once."""
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    made = _parse({**document, "model": empty, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None})
    made.model = whole.model
    flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
    made.add_tokens([AddedToken(one.content, **{name: getattr(one, name) for name in flags}) for one in added])
    return made


def _steps(document: dict[str, Any], part: str) -> Iterator[dict[str, Any]]:
    """Each step of a part of the file, in order."""
    left = [document.get(part)]
    while left:
        step = left.pop(0)
        if isinstance(step, dict):
            yield step
            for key in ("pretokenizers", "normalizers", "decoders"):
                if isinstance(step.get(key), list):
                    left = [*step[key], *left]


def _without_prefix(document: dict[str, Any]) -> dict[str, Any]:
    """The file without what puts a space before a text."""

    def edited(step: Any) -> Any:
        if not isinstance(step, dict):
            return step
        made = dict(step)
        if made.get("type") == "Metaspace":
            made |= {"prepend_scheme": "never"}
            made.pop("add_prefix_space", None)
        elif "add_prefix_space" in made:
            made["add_prefix_space"] = False
        for key in ("pretokenizers", "normalizers"):
            if isinstance(made.get(key), list):
                made[key] = [edited(one) for one in made[key] if not (isinstance(one, dict) and one.get("type") == "Prepend")]
        return made

    normalizer = document.get("normalizer")
    prepends = isinstance(normalizer, dict) and normalizer.get("type") == "Prepend"
    return {**document, "normalizer": None if prepends else edited(normalizer), "pre_tokenizer": edited(document.get("pre_tokenizer"))}


def _check_writing(document: dict[str, Any], byte_level: bool) -> None:
    """Tokens are written out as ``_pieces`` has them: a file that asks for another text of theirs is refused.

    Raises:
        ModelError: it does.
    """
    for step in _steps(document, "decoder"):
        if not (step.get("type") in BYTE_LEVEL_WRITING if byte_level else _writes_spaces(step)):
            kind = "ByteLevel" if byte_level else "Replace or Metaspace of \u2581 by a space, ByteFallback, Fuse and Strip of a first space"
            got = step.get("type") if byte_level else json.dumps(step)
            raise ModelError(f"{TOKENIZER}: 'decoder' must be made of {kind}; others are not implemented, got {shorten(got)}.")
    dropping = next((step["type"] for step in _steps(document, "pre_tokenizer") if step.get("type") in DROPS_SPACES), "")
    if dropping and not byte_level and document.get("decoder") is None:  # transformers writes a space after each token then
        raise ModelError(f"{TOKENIZER}: 'decoder' must be there to write the spaces that {dropping} drops; no other way is implemented.")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if document["model"].get(key):
            raise ModelError(
                f"{TOKENIZER}: {key!r} must be null or empty; another is not implemented, got {shorten(document['model'][key])}."
            )


def _writes_spaces(step: dict[str, Any]) -> bool:
    """Whether a step of a decoder is one of those that SentencePiece's vocabularies have."""
    type_ = step.get("type")
    if type_ == "Replace":
        return step.get("pattern") == {"String": SPACE_MARK} and step.get("content") == " "
    if type_ == "Strip":  # the space that was put before the text
        return step.get("content") == " " and step.get("start") in (0, 1) and step.get("stop") == 0
    return type_ in ("Sequence", "ByteFallback", "Fuse") or (type_ == "Metaspace" and step.get("replacement") == SPACE_MARK)


def _pieces(vocabulary: Vocabulary, byte_level: bool) -> Pieces:
    if byte_level:
        return byte_level_pieces(vocabulary)
    # What the decoder writes for a space, it writes in added tokens too.
    return sentence_pieces(replace(vocabulary, types=vocabulary.types.replace(bytes([TokenType.USER_DEFINED]), bytes([TokenType.NORMAL]))))


def _roles(meta: Metadata, vocabulary: Vocabulary) -> Roles:
    keys = [f"{PREFIX}{name}_token_id" for name in ("eos", "bos", "padding")]
    eos, bos, pad = (vocabulary.ids.text(meta.integer(key, low=0)) if key in meta else "" for key in keys)
    return Roles(eos, bos, pad, meta.text(TEMPLATE, ""))


def _longest(document: dict[str, Any], added: tuple[Added, ...], vocabulary: Vocabulary, byte_level: bool) -> int | None:
    """Most bytes of a text that become one token; ``None`` = any number, or nobody knows."""
    for step in (*_steps(document, "normalizer"), *_steps(document, "pre_tokenizer")):
        spaces = step.get("type") == "Replace" and (step.get("pattern"), step.get("content")) != ({"String": " "}, "\u2581")
        if step.get("type") not in KEEPS_LENGTH or step.get("behavior") == "Removed" or spaces:
            return None
    model = document["model"]
    # Of characters that have no token one stands for a whole run, or they are dropped; a byte without one is in ``Traits.dropped``.
    whole = model.get("byte_fallback") or (byte_level and model.get("unk_token") is None)
    if not whole or any(one.lstrip or one.rstrip for one in added):
        return None
    return max(len(text.encode()) for text in vocabulary.ids)


def _dropped(vocabulary: Vocabulary) -> bytes:
    return bytes(byte for byte, letter in enumerate(byte_alphabet()) if letter not in vocabulary.ids)
