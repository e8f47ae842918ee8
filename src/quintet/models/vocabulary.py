"""What a model file says about its vocabulary: token texts, types, and the tokens with a role. Follows llama.cpp's reading."""

from __future__ import annotations

import contextlib
import enum
import re
from dataclasses import dataclass

from quintet.models.metadata import Metadata
from quintet.models.pieces import Pieces
from quintet.models.texts import Texts
from quintet.models.think import known_tags
from quintet.models.traits import Fim, ThinkTags

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
SPACE_MARK = "\u2581"
"""What SentencePiece writes for a space."""


class TokenType(enum.IntEnum):
    """``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = re.compile(b"[%s]" % re.escape(bytes((TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED))))
"""Types whose text is recognised in a prompt before anything else."""

_ALL = frozenset(map(int, TokenType))
_KNOWN = bytes(n if n in _ALL else TokenType.UNDEFINED for n in range(256))

END_NAMES = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>"),
        *("</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>"),
        *("<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~["),
    }
)
"""Texts that end a generation wherever they are in a vocabulary, all but one even where the file types them as words."""

HTML = "</s>"
"""Also the end of what HTML strikes out. Qwen's vocabulary has it as a word, of which its tokenizer never makes use; llama.cpp makes it a
control token there too, and such a page ends in the middle of a line. It is an end where it is typed so, or is the file's own end."""

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
MESSAGE_NAMES = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Tokens of a chat format whose text belongs to the answer."""

FIM: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prefix": (
        ("fim_pre_token_id", "prefix_token_id"),
        (
            *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>"),
            *("<|code_prefix|>", "<|prefix|>"),
        ),
    ),
    "suffix": (
        ("fim_suf_token_id", "suffix_token_id"),
        (
            *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>"),
            *("<|code_suffix|>", "<|suffix|>"),
        ),
    ),
    "middle": (
        ("fim_mid_token_id", "middle_token_id"),
        (
            *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>"),
            *("<|code_middle|>", "<|middle|>"),
        ),
    ),
    "pad": (("fim_pad_token_id",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    "repo": (("fim_rep_token_id",), ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    "separator": (("fim_sep_token_id",), ("<|file_sep|>",)),
}
"""Role in fill-in-the-middle -> (metadata keys, well-known texts, the first found wins)."""


@dataclass(slots=True)
class Vocabulary:
    """All tokens and the roles of some.

    Args:
        ids: text -> id.
        types: ``TokenType`` by id.
        eos_ids: ids that end a generation.
        think: what the model writes around its thinking; ``None`` = it does not think.
    """

    ids: Texts
    types: bytearray
    fim: Fim
    eos_ids: frozenset[int]
    think: ThinkTags | None

    @property
    def specials(self) -> list[tuple[str, int]]:
        """Texts recognised in a prompt, with their ids."""
        return [(self.ids.text(found.start()), found.start()) for found in _SPECIAL.finditer(self.types)]

    @property
    def words(self) -> list[tuple[str, int]]:
        """Those among them that mean no more than their text, so that they are recognised even where text is quoted."""
        return [(text, token) for text, token in self.specials if self.types[token] == TokenType.USER_DEFINED]


def read_vocabulary(meta: Metadata, think: tuple[str, str] | None = None) -> Vocabulary:
    """Tokens, types and roles.

    Args:
        think: the tags around thinking; ``None`` = those that the file tells of.

    Raises:
        ModelError: a key is missing, mistyped or out of range, or a token is not UTF-8 or listed twice.
    """
    ids = Texts(meta, PREFIX + "tokens")
    types = _types(meta, len(ids))
    fim = {role: _role(meta, ids, types, keys, names) for role, (keys, names) in FIM.items()}
    ends = {fim["pad"], fim["repo"], fim["separator"]}
    named = {token_id(meta, key, len(ids)) for key in END_KEYS}
    for text in END_NAMES & ids.keys():
        if text == HTML and ids[text] not in named and types[ids[text]] == TokenType.NORMAL and PREFIX + "token_type" in meta:
            continue
        types[ids[text]] = TokenType.CONTROL
        ends.add(ids[text])
    ends |= named
    for text in MESSAGE_NAMES:
        if text in ids:
            types[ids[text]] = TokenType.USER_DEFINED
    ends -= _not_ends(ids, types, ends)
    tags = think or known_tags(meta.text(TEMPLATE, ""), ids)
    for text in tags or ():
        if text in ids and types[ids[text]] == TokenType.CONTROL:
            types[ids[text]] = TokenType.USER_DEFINED  # a client could not tell the thinking from the answer without them
    found = ThinkTags(*tags, ids.get(tags[1])) if tags else None
    return Vocabulary(ids, types, Fim(**fim), frozenset(token for token in ends if token is not None), found)


def token_id(meta: Metadata, name: str, size: int) -> int | None:
    """The id under ``tokenizer.ggml.<name>``; ``None`` if the file does not say."""
    key = PREFIX + name
    return meta.integer(key, low=0, high=size - 1) if key in meta else None


def _types(meta: Metadata, size: int) -> bytearray:
    numbers = meta.numbers(PREFIX + "token_type", size)
    if numbers is None:
        return bytearray([TokenType.NORMAL]) * size
    if numbers.format in ("f", "d"):
        raise meta.error(PREFIX + "token_type", "must be an array of integers", numbers)
    listed = numbers.tolist()
    with contextlib.suppress(ValueError):  # one does not fit a byte
        return bytearray(bytes(listed).translate(_KNOWN))
    return bytearray(n if n in _ALL else TokenType.UNDEFINED for n in listed)


def _role(meta: Metadata, ids: Texts, types: bytearray, keys: tuple[str, ...], names: tuple[str, ...]) -> int | None:
    for key in reversed(keys):
        token = token_id(meta, key, len(ids))
        if token is not None:
            return token
    found = next((ids[name] for name in names if name in ids), None)
    if found is not None:
        types[found] = TokenType.CONTROL
    return found


def _not_ends(ids: Texts, types: bytearray, ends: set[int | None]) -> set[int | None]:
    """Two formats use the text of an end token for something else; the token is taken back."""
    have = {text for text in END_NAMES if ids.get(text, -1) in ends}
    back: set[int | None] = set()
    if {"<|call|>", "<|calls|>"} & have and {"<|return|>", "<|flush|>"} & have and "<|end|>" in have:
        back.add(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if ("<|tool_response>" in have or ids.get("<|plamo:eos|>", -1) in ends) and "</s>" in have:
        back.add(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
    return back


def byte_alphabet() -> str:
    """The 256 characters that byte-level BPE writes for the bytes 0 to 255: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


def byte_level_pieces(vocabulary: Vocabulary) -> Pieces:
    """The bytes of each token of a byte-level vocabulary, empty for control tokens; a text outside the alphabet stands for itself."""
    return vocabulary.ids.spelled(byte_alphabet(), bytes(vocabulary.types))


def sentence_pieces(vocabulary: Vocabulary) -> Pieces:
    """The bytes of each token of a SentencePiece vocabulary, empty for control tokens."""
    return Pieces.of(
        [
            _piece(text.replace(SPACE_MARK, " ") if type_ == TokenType.NORMAL else text, type_)
            for text, type_ in zip(vocabulary.ids, vocabulary.types, strict=True)
        ]
    )


def _piece(text: str, type_: int) -> bytes:
    if type_ == TokenType.BYTE:
        digits = re.fullmatch("<0x([0-9A-Fa-f]{2})>", text)
        return bytes.fromhex(digits[1]) if digits else text.encode()
    return text.encode() if type_ in (TokenType.NORMAL, TokenType.USER_DEFINED) else b""
