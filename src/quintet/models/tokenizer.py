"""Text to token ids, exactly as llama.cpp does it for the same file."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from quintet.models.metadata import Metadata
from quintet.models.pieces import Pieces
from quintet.models.pretokenizers import PRETOKENIZERS, Pretokenizer, Rules
from quintet.models.special import MAX_CHARACTERS, MAX_LENGTH, Specials
from quintet.models.texts import Merges
from quintet.models.traits import Roles, Traits
from quintet.models.vocabulary import (
    PREFIX,
    TEMPLATE,
    Vocabulary,
    byte_alphabet,
    byte_level_pieces,
    read_vocabulary,
    sentence_pieces,
    token_id,
)
from quintet.models.words import WordCache

LONG_WORD = 4096
"""Bytes. A longer word is merged without holding the interpreter, which takes a second for a million; a shorter one is not worth it."""


class Encoder(Protocol):
    """Encodes text that holds no special tokens."""

    def encode(self, text: str, after_special: bool) -> list[int]: ...
    def spelling(self, token: int) -> str: ...


class Tokenizer:
    """A model's tokenizer; there is no decoder, since the vocabulary is bytes.

    Args:
        words: those of the specials that are found in quoted text too.
        pieces: bytes of each id, empty for control tokens.
        eos_ids: ids that end a sequence.
        special: ids whose text is recognised in a prompt.
        bos_id: the beginning-of-sequence token, if the model has one.
        eos_id: likewise the end.
        add_bos: the metadata asks for a BOS before a prompt.
        add_eos: likewise an EOS after it.
        traits: what it tells of the model; ``added`` is filled in here.
    """

    def __init__(
        self,
        encoder: Encoder,
        specials: Specials,
        words: Specials,
        *,
        pieces: Pieces,
        eos_ids: frozenset[int],
        special: frozenset[int],
        bos_id: int | None,
        eos_id: int | None,
        add_bos: bool,
        add_eos: bool,
        traits: Traits,
    ) -> None:
        self._encoder, self._specials, self._words = encoder, specials, words
        self.pieces, self.eos_ids, self.special = pieces, eos_ids, special
        self.bos_id, self.eos_id = bos_id, eos_id
        self._before = [bos_id] if add_bos and bos_id is not None else []
        self._after = [eos_id] if add_eos and eos_id is not None else []
        self.traits = replace(traits, added=(len(self._before), len(self._after)))

    def encode(self, text: str) -> list[int]:
        """Prompt text to ids: special-token texts are recognised, BOS and EOS added only if the metadata asks for them.

        Raises:
            ValueError: the text holds a lone surrogate, so it is not Unicode text.
        """
        return [*self._before, *self._encode(text, self._specials, after_special=True), *self._after]

    def encode_inside(self, text: str) -> list[int]:
        """Ids of text that stands inside a longer one: neither BOS, EOS nor a space is added.

        Raises:
            ValueError: as for ``encode``.
        """
        return self._encode(text, self._specials, after_special=False)

    def encode_quoted(self, text: str) -> list[int]:
        """Ids of text in which a control token's text is text like any other: neither BOS nor EOS is added.

        Raises:
            ValueError: as for ``encode``.
        """
        return self._encode(text, self._words, after_special=True)

    def spelling(self, token: int) -> str:
        """How the vocabulary itself writes a token; empty for an id beyond it."""
        return self._encoder.spelling(token) if 0 <= token < len(self.pieces) else ""

    def _encode(self, text: str, specials: Specials, after_special: bool) -> list[int]:
        require_unicode(text)
        ids: list[int] = []
        for part in specials.cut(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encoder.encode(part, after_special)
            after_special = isinstance(part, int)
        return ids


def build_tokenizer(meta: Metadata, think: tuple[str, str] | None = None) -> Tokenizer:
    """The tokenizer that a model file describes.

    Args:
        think: the tags around the model's thinking; ``None`` = those that the file tells of.

    Raises:
        ModelError: a key is missing or wrong, or asks for a tokenizer or pre-tokenizer that is not implemented; or such a tag cannot
            be written with the vocabulary.
    """
    suppressed = PREFIX + "suppress_tokens"
    if suppressed in meta:
        raise meta.error(suppressed, "asks for something that is not implemented", meta.get(suppressed))
    model = meta.text(PREFIX + "model")
    if model == "gpt2":
        made = _byte_level(meta, think)
    elif model == "llama":
        made = _sentence_piece(meta, think)
    else:
        raise meta.error(PREFIX + "model", "must be one of the supported gpt2 (byte-level BPE), llama (SentencePiece)", model)
    made.traits = settle_think(made, meta, think)
    return made


class Writer(Protocol):
    """Writes text inside a longer one."""

    @property
    def pieces(self) -> Pieces: ...
    @property
    def traits(self) -> Traits: ...
    def encode_inside(self, text: str) -> list[int]: ...


def settle_think(tokenizer: Writer, meta: Metadata, think: tuple[str, str] | None) -> Traits:
    """Its traits, without think tags whose end its vocabulary cannot write.

    Args:
        think: those that were asked for.

    Raises:
        ModelError: these cannot be written.
    """
    tags = tokenizer.traits.think
    if tags is None or b"".join(tokenizer.pieces[token] for token in tokenizer.encode_inside(tags.end)) == tags.end.encode():
        return tokenizer.traits
    if think:
        raise meta.error(PREFIX + "tokens", "has no tokens to write the end of a think block with", tags.end)
    return replace(tokenizer.traits, think=None)


def require_unicode(text: str) -> None:
    """What an engine can tokenise.

    Raises:
        ValueError: the text holds a lone surrogate, so it is not Unicode text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is a lone surrogate, U+{ord(text[error.start]):04X}") from None


def _byte_level(meta: Metadata, think: tuple[str, str] | None) -> Tokenizer:
    name = meta.text(PREFIX + "pre", "")
    rules = PRETOKENIZERS.get(name)
    if rules is None:
        raise meta.error(PREFIX + "pre", f"must be one of the supported {', '.join(filter(None, PRETOKENIZERS))}", name)
    vocabulary = read_vocabulary(meta, think)
    encoder = _ByteLevel(meta, vocabulary, rules)
    longest = vocabulary.ids.longest  # each letter stands for a byte
    made = _tokenizer(meta, vocabulary, encoder, byte_level_pieces(vocabulary), longest, bos=None, eos=None, add_bos=rules.add_bos)
    made.traits = replace(made.traits, dropped=encoder.dropped)
    return made


def _sentence_piece(meta: Metadata, think: tuple[str, str] | None) -> Tokenizer:
    from quintet.models.spm import SentencePiece  # brings the library, which other models do not need

    vocabulary = read_vocabulary(meta, think)
    longest = max(len(text.encode()) for text in vocabulary.ids)
    encoder = SentencePiece(meta, vocabulary)
    return _tokenizer(meta, vocabulary, encoder, sentence_pieces(vocabulary), longest, bos=1, eos=2, add_bos=True)


def _tokenizer(
    meta: Metadata,
    vocabulary: Vocabulary,
    encoder: Encoder,
    pieces: Pieces,
    longest: int,
    *,
    bos: int | None,
    eos: int | None,
    add_bos: bool,
) -> Tokenizer:
    """``longest``: most bytes of plain text in a token; ``bos``, ``eos`` and ``add_bos``: taken where the metadata does not say."""
    size = len(vocabulary.ids)
    bos_id, eos_id = token_id(meta, "bos_token_id", size), token_id(meta, "eos_token_id", size)
    if bos_id is None and bos is not None and bos < size:
        bos_id = bos
    if eos_id is None and eos is not None and eos < size:
        eos_id = eos
    asks = {"bos": meta.flag(PREFIX + "add_bos_token", add_bos), "eos": meta.flag(PREFIX + "add_eos_token", False)}
    for name, token in (("bos", bos_id), ("eos", eos_id)):
        if asks[name] and token is None:
            raise meta.error(f"{PREFIX}{name}_token_id", f"is missing, but the tokenizer is to add the {name.upper()}")
    specials = vocabulary.specials
    for text, token in specials:
        if len(text) > MAX_LENGTH:
            raise meta.error(PREFIX + "tokens", f"must not have a special token of over {MAX_LENGTH} characters, but entry {token} is one")
    if (characters := sum(len(text) for text, _ in specials)) > MAX_CHARACTERS:
        raise meta.error(PREFIX + "tokens", f"must not have special tokens of over {MAX_CHARACTERS} characters in all", characters)
    special = frozenset(token for _, token in specials)
    strip = _strip_after(meta, vocabulary, special)
    return Tokenizer(
        encoder,
        Specials(specials, strip),
        Specials(vocabulary.words, strip),
        pieces=pieces,
        eos_ids=vocabulary.eos_ids | ({eos_id} if eos_id is not None else set()),
        special=special,
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=asks["bos"],
        add_eos=asks["eos"],
        traits=Traits(
            fim=vocabulary.fim,
            think=vocabulary.think,
            roles=_roles(meta, vocabulary, bos_id, eos_id),
            longest=None if strip else max((longest, *(len(text.encode()) for text, _ in specials))),
        ),
    )


def _roles(meta: Metadata, vocabulary: Vocabulary, bos_id: int | None, eos_id: int | None) -> Roles:
    ids = eos_id, bos_id, _padding(meta, len(vocabulary.ids))
    eos, bos, pad = ("" if token is None else vocabulary.ids.text(token) for token in ids)
    return Roles(eos, bos, pad, meta.text(TEMPLATE, ""))


def _padding(meta: Metadata, size: int) -> int | None:
    """``None`` if the file does not say, or says -1 in 32 bits, as some do: llama.cpp takes a token that there is not for none."""
    key = PREFIX + "padding_token_id"
    found = meta.integer(key, low=0, high=(1 << 32) - 1) if key in meta else size
    return found if found < size else None


def _strip_after(meta: Metadata, vocabulary: Vocabulary, special: frozenset[int]) -> frozenset[int]:
    """Phi 3 drops white space after its special tokens; the file does not say so, only its name does."""
    name = meta.text("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    return special - {vocabulary.ids.get(text, -1) for text in ("<unk>", "<s>", "<|endoftext|>")}


class _ByteLevel:
    """Byte-level BPE: words, written in a 256-letter alphabet of bytes, merged by rank.

    Raises:
        ModelError: merges that are missing, malformed or not about tokens.
    """

    def __init__(self, meta: Metadata, vocabulary: Vocabulary, rules: Rules) -> None:
        alphabet = byte_alphabet()
        self._split = Pretokenizer(rules.stages).split
        self._texts = vocabulary.ids
        self._merges = Merges(meta, PREFIX + "merges", vocabulary.ids, alphabet, whole=rules.whole_words)
        self._encode = WordCache(self._word).encode
        self.dropped = bytes(byte for byte, letter in enumerate(alphabet) if letter not in vocabulary.ids)
        """Bytes without a token."""

    def encode(self, text: str, after_special: bool) -> list[int]:  # noqa: ARG002 - the protocol's
        return self._encode(self._split(text))

    def spelling(self, token: int) -> str:
        return self._texts.text(token)

    def _word(self, word: str) -> list[int]:
        raw = word.encode()
        return self._merges.encode_long(raw) if len(raw) > LONG_WORD else self._merges.encode(raw)
