"""tokenizer.json and the files around it -> the vocabulary in GGUF's keys, so that roles of tokens are found one way."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from quintet.errors import ModelError, shorten
from quintet.models.files import file_errors
from quintet.models.folder.config import read_outline
from quintet.models.folder.documents import read_document
from quintet.models.folder.files import CONFIG, GENERATION, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from quintet.models.folder.kinds import left_out
from quintet.models.metadata import LENGTH_BYTES, Metadata, StringArray, Value, quoted
from quintet.models.special import MAX_CHARACTERS
from quintet.models.vocabulary import PREFIX, TokenType
from quintet.models.vocabulary import TEMPLATE as TEMPLATE_KEY

MAX_TOKENIZER = 1 << 26
MAX_TEMPLATE = 1 << 20
MAX_ADDED = 1 << 16
MAX_VOCAB = 1 << 22
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
OTHER_ROLES = ("sep_token", "cls_token", "mask_token")
LISTS = ("additional_special_tokens", "extra_special_tokens")
"""Of tokenizer_config.json: control tokens, as ``ROLES`` and ``OTHER_ROLES`` are."""
SPLIT = "split_special_tokens"
FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")


@dataclass(frozen=True, slots=True)
class Added:
    """A token whose text is found before anything else.

    Args:
        special: it is one of the format's, no text of the model's.
        single_word, lstrip, rstrip, normalized: see ``tokenizers.AddedToken``.
    """

    id: int
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class Files:
    """What a folder's files say about its tokenizer.

    Args:
        document: tokenizer.json's object.
        added: its added tokens that the model has rows for, and those of the other files, by id.
        metadata: GGUF's keys: tokens, their types, those with a role, the chat template.
        ends: ids that end a generation.
    """

    document: dict[str, Any]
    added: tuple[Added, ...]
    metadata: Metadata
    ends: frozenset[int]


def read_files(folder: Path, *, any_model: bool = False) -> Files:
    """Read them.

    Args:
        any_model: of a model that the native core need not know.

    Raises:
        ModelError: a file is missing, damaged or contradicts another.
    """
    return _Reading(folder, any_model).files()


def _size(sources: Iterable[Mapping[str, Any]]) -> int:
    """How many tokens a model has rows for."""
    size = next((source["vocab_size"] for source in sources if "vocab_size" in source), None)
    if type(size) is not int or not 0 < size <= MAX_VOCAB:
        raise ModelError(f"{CONFIG}: 'vocab_size' must be an integer from 1 to {MAX_VOCAB}, got {shorten(size)}.")
    return size


class _Reading:
    """One folder's files."""

    def __init__(self, folder: Path, any_model: bool) -> None:
        if not (folder / TOKENIZER).is_file():
            raise ModelError(f"{folder}: has no {TOKENIZER}: other forms of tokenizers are not read.")
        config = read_document(folder / CONFIG)
        if any_model:
            part = config.get("text_config")
            self._sources = [config, part] if isinstance(part, dict) else [config]
            self._size = _size([*self._sources, left_out(config)])
        else:
            outline = read_outline(config)
            self._size = outline.vocab
            self._sources = [config, config.get(outline.kind.section) or {}] if outline.kind.section else [config]
        self._generation = _optional(folder / GENERATION)
        self._settings = _optional(folder / TOKENIZER_CONFIG)
        _require_recognising(self._settings)
        self._template = _template(folder, self._settings)
        self.document = read_document(folder / TOKENIZER, MAX_TOKENIZER)
        self._model = self.document.get("model")

    def files(self) -> Files:
        texts = self._vocabulary()
        listed = {one.id: one for one in self._added()}
        for token, one in listed.items():
            if token in texts and texts[token] != one.content:
                raise _error(f"token {token} must be one text", f"{shorten(texts[token])} and {shorten(one.content)}")
            if token < self._size:
                texts[token] = one.content
        ids = {text: token for token, text in texts.items()}
        named = {name: self._named(name, ids) for name in ROLES}
        listed |= {one.id: one for one in self._told_again(texts)}
        # Those alone: transformers makes no token special for an id in config.json, where it may be any text's.
        for text, flags in self._controls():
            if text in ids and ids[text] not in listed:
                listed[ids[text]] = Added(ids[text], text, **{**flags, "special": True})
        roles = {name: self._configured(name) if role is None else role for name, role in named.items()}
        added = tuple(one for token, one in sorted(listed.items()) if token < self._size)
        values = self._values(texts, {one.id: one for one in added}, roles)
        ends = frozenset(token for token in (*self._ends(), roles["eos_token"]) if token is not None)
        return Files(self.document, added, Metadata(TOKENIZER, values), ends)

    def _vocabulary(self) -> dict[int, str]:
        """Text of each id, without the added tokens."""
        found = self._model.get("vocab") if isinstance(self._model, dict) else None
        if not isinstance(self._model, dict) or self._model.get("type", "BPE") != "BPE" or not isinstance(found, dict) or not found:
            type_ = self._model.get("type") if isinstance(self._model, dict) else None
            raise _error("'model' must be of type BPE with a vocabulary; others are not implemented", shorten(type_))
        texts: dict[int, str] = {}
        for text, token in found.items():
            if type(token) is not int or not 0 <= token < self._size:
                raise _error(f"the id of token {quoted(text)} must be an integer below the model's vocab_size {self._size}", shorten(token))
            if texts.setdefault(token, text) != text:
                raise _error(f"token {token} must be one text", f"{shorten(texts[token])} and {shorten(text)}")
        return texts

    def _added(self) -> Iterator[Added]:
        entries = self.document.get("added_tokens", [])
        if not isinstance(entries, list) or len(entries) > MAX_ADDED:
            raise _error(f"'added_tokens' must be a list of at most {MAX_ADDED}", shorten(entries))
        characters = 0
        for entry in entries:
            token, content = (entry.get("id"), entry.get("content")) if isinstance(entry, dict) else (None, None)
            if type(token) is not int or not 0 <= token < 1 << 31 or not isinstance(content, str) or not content:
                raise _error("'added_tokens' must hold objects with an id and a content", shorten(entry))
            characters += len(content)
            if characters > MAX_CHARACTERS:
                raise _error(f"'added_tokens' must have contents of at most {MAX_CHARACTERS} characters in all", str(characters))
            yield Added(token, content, **{**dict.fromkeys(FLAGS, False), **_flags(TOKENIZER, "added_tokens", entry)})

    def _named(self, name: str, ids: dict[str, int]) -> int | None:
        """The id of a token that tokenizer_config.json names."""
        found = self._settings.get(name)
        text = found.get("content") if isinstance(found, dict) else found
        if isinstance(text, str) and text in ids:
            return ids[text]
        if text is not None and not isinstance(text, str):
            raise ModelError(f"{TOKENIZER_CONFIG}: {quoted(name)} must be a text, got {shorten(found)}.")
        return None

    def _configured(self, name: str) -> int | None:
        """The id that the model's configuration has for it, which of ``unk_token`` says nothing to a tokenizer."""
        if name == "unk_token":
            return None
        token = next((source[f"{name}_id"] for source in self._sources if source.get(f"{name}_id") is not None), None)
        return next(self._ids(CONFIG, f"{name}_id", token), None)

    def _ends(self) -> Iterator[int]:
        for file, source in ((GENERATION, self._generation), *((CONFIG, source) for source in self._sources)):
            yield from self._ids(file, "eos_token_id", source.get("eos_token_id"))

    def _ids(self, file: str, key: str, value: object) -> Iterator[int]:
        """One id or several, or none; -1 is nobody's."""
        if value is None:
            return
        for token in value if isinstance(value, list) else [value]:
            if type(token) is not int or not -1 <= token < 1 << 31:
                raise ModelError(f"{file}: {quoted(key)} must be a token's id, or a list of such, got {shorten(value)}.")
            if 0 <= token < self._size:
                yield token

    def _told_again(self, texts: dict[int, str]) -> Iterator[Added]:
        """tokenizer_config.json may tell of tokens once more, and its flags count; one of another text would be another's row."""
        listed = self._settings.get("added_tokens_decoder", {})
        for token, entry in listed.items() if isinstance(listed, dict) else ():
            content = entry.get("content") if isinstance(entry, dict) else None
            if not str(token).isdecimal() or (int(token) < self._size and texts.get(int(token)) != content):
                rule = f"must tell of tokens as {TOKENIZER} does, but {quoted(token)} is {shorten(content)}"
                raise ModelError(f"{TOKENIZER_CONFIG}: 'added_tokens_decoder' {rule}.")
            if isinstance(content, str) and content and int(token) < self._size:
                flags = _flags(TOKENIZER_CONFIG, "added_tokens_decoder", entry)
                yield Added(int(token), content, **{"normalized": not flags.get("special"), **flags})

    def _controls(self) -> Iterator[tuple[str, dict[str, bool]]]:
        """Texts of control tokens that tokenizer_config.json names, with their flags."""
        named: list[tuple[str, object]] = [(name, self._settings.get(name)) for name in (*ROLES, *OTHER_ROLES)]
        for name in LISTS:
            listed = self._settings.get(name)
            if isinstance(listed, dict):
                named += [(name, token) for token in listed.values()]
            elif isinstance(listed, list):
                named += [(name, token) for token in listed]
        for name, token in named:
            if isinstance(token, str) and token:
                yield token, {}
            elif isinstance(token, dict) and isinstance(text := token.get("content"), str) and text:
                yield text, _flags(TOKENIZER_CONFIG, name, token)

    def _values(self, texts: dict[int, str], added: dict[int, Added], roles: dict[str, int | None]) -> dict[str, Value]:
        fallback = isinstance(self._model, dict) and self._model.get("byte_fallback") is True
        rows, types = [], array("i")
        for token in range(self._size):
            text = texts.get(token)
            rows.append(f"[PAD{token}]" if text is None else text)  # a row that nobody's text leads to, as converters name it
            if text is None:
                types.append(TokenType.UNUSED)
            elif token in added:
                types.append(TokenType.CONTROL if added[token].special else TokenType.USER_DEFINED)
            else:
                types.append(TokenType.BYTE if fallback and re.fullmatch("<0x[0-9A-Fa-f]{2}>", text) else TokenType.NORMAL)
        values: dict[str, Value] = {PREFIX + "tokens": _strings(rows), PREFIX + "token_type": memoryview(types)}
        keys = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
        values |= {PREFIX + keys[name]: token for name, token in roles.items() if name in keys and token is not None}
        if self._template:
            values[TEMPLATE_KEY] = self._template
        return values


def _flags(file: str, name: str, entry: Mapping[str, Any]) -> dict[str, bool]:
    """Those that a file has of a token."""
    flags = {flag: entry[flag] for flag in FLAGS if flag in entry}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ModelError(f"{file}: {quoted(name)} must hold flags that are booleans, got {shorten(entry)}.")
    return flags


def _error(rule: str, got: str) -> ModelError:
    return ModelError(f"{TOKENIZER}: {rule}, got {got}.")


def _require_recognising(settings: Mapping[str, Any]) -> None:
    """transformers recognises no control token in a prompt if it is told so; here texts of control tokens are always recognised."""
    if (found := settings.get(SPLIT)) not in (None, False):
        raise ModelError(f"{TOKENIZER_CONFIG}: {quoted(SPLIT)} must be false or left out; true is not implemented, got {shorten(found)}.")


def _optional(path: Path) -> dict[str, Any]:
    return read_document(path) if path.is_file() else {}


def _template(folder: Path, settings: dict[str, Any]) -> str:
    """The chat template: a file of its own, or in tokenizer_config.json, where several have names."""
    path = folder / TEMPLATE
    if path.is_file():
        with file_errors(path), path.open("rb") as file:
            return file.read(MAX_TEMPLATE).decode("utf-8", "replace")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def _strings(texts: list[str]) -> StringArray:
    """As they would lie in a GGUF file.

    Raises:
        ModelError: one is not Unicode text.
    """
    try:
        raw = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        raise _error("tokens must be Unicode text", shorten(error.object)) from None
    blob = b"".join(struct.pack("<Q", len(one)) + one for one in raw)
    return StringArray(memoryview(blob), array("q", accumulate(LENGTH_BYTES + len(one) for one in raw)))
