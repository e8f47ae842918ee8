"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``: vLLM's shapes, which lm-eval's remote tokenizer asks for, and llama.cpp's.

vLLM: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api; llama.cpp: tools/server/README.md, which calls
the text ``content`` and wants ``add_special`` false by default.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintet.dialects.columns import stretched
from quintet.dialects.fields import Boolean, Field, String, unknown, wrong_type
from quintet.dialects.fields import Prompts as _Prompts
from quintet.dialects.json_guard import decode_object
from quintet.dialects.wire import encode
from quintet.errors import BadRequest, printable

MODEL = Field("model", String(256), "", note="Left out, it is the served model.", shown="the served model")
PROMPT: Field[str | None] = Field("prompt", String(), None, note="vLLM's name of the text.")
CONTENT: Field[str | None] = Field("content", String(), None, note="llama.cpp's name of it; one of the two.")
ADD_SPECIAL_TOKENS = Field("add_special_tokens", Boolean(), True, note="BOS and EOS, if the model's metadata asks for them.")
ADD_SPECIAL = Field("add_special", Boolean(), False, note="llama.cpp's name of it, and its default with `content`.")
PARSE_SPECIAL = Field("parse_special", Boolean(), True, note="False is refused: special-token texts are recognised.")
RETURN_TOKEN_STRS: Field[bool] = Field(
    "return_token_strs", Boolean(), False, note="With `prompt`: the tokens as the vocabulary writes them (`Ġthe`), as `token_strs`."
)
WITH_PIECES: Field[bool] = Field("with_pieces", Boolean(), False, note="With `content`: `tokens` are objects of `id` and `piece`.")
INSIDE: Field[bool] = Field(
    "inside", Boolean(), False, note="The text follows other tokens: no special tokens come around it, and no space before it."
)
FIELDS: tuple[Field[Any], ...] = (
    *(MODEL, PROMPT, CONTENT, ADD_SPECIAL_TOKENS, ADD_SPECIAL, PARSE_SPECIAL, RETURN_TOKEN_STRS, WITH_PIECES, INSIDE),
)
_OF_IDS = frozenset({MODEL.name, "tokens"})


@dataclass(frozen=True, slots=True)
class Tokenize:
    """What to tokenise, and how the answer looks.

    Args:
        model: empty = the served one.
        inside: it stands inside a longer text, and nothing comes around it.
        llama: llama.cpp's shape.
        texts: with the text of each token.
        ignored: fields of the body that neither server has.
    """

    model: str
    text: str
    add_special: bool
    inside: bool
    llama: bool
    texts: bool
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Detokenize:
    """What to write out.

    Args:
        model: empty = the served one.
        ids: wait for their turn in 4 bytes each: as a list they may be twenty times the body.
        ignored: as ``Tokenize``.
    """

    model: str
    ids: Sequence[int]
    ignored: tuple[str, ...] = ()


def parse_tokenize(body: bytes) -> Tokenize:
    """
    Raises:
        BadRequest: and nothing else, whatever the bytes.
    """
    raw = decode_object(body)
    for field in FIELDS:
        field.of(raw)  # checked also where another's value leaves it unused
    prompt, content = PROMPT.of(raw), CONTENT.of(raw)
    if (prompt is None) == (content is None):
        raise BadRequest("prompt", "or content is required, and not both")
    if not PARSE_SPECIAL.of(raw):
        raise BadRequest(PARSE_SPECIAL.name, "must be true: special-token texts are recognised here", "False")
    llama = prompt is None
    own, shape, other = (CONTENT, WITH_PIECES, RETURN_TOKEN_STRS) if llama else (PROMPT, RETURN_TOKEN_STRS, WITH_PIECES)
    if other.of(raw):
        raise BadRequest(other.name, f"must be false with {own.name}, whose answer has {shape.name}", "True")
    inside = INSIDE.of(raw)
    special = _adds(raw, llama, inside)
    return Tokenize(MODEL.of(raw), prompt or content or "", special, inside, llama, shape.of(raw), unknown(FIELDS, raw))


def _adds(raw: Mapping[str, object], llama: bool, inside: bool) -> bool:
    """Special tokens come around the text, as either name of that has it; the form's own name counts if both are there."""
    own, other = (ADD_SPECIAL, ADD_SPECIAL_TOKENS) if llama else (ADD_SPECIAL_TOKENS, ADD_SPECIAL)
    if inside:
        if asked := [field.name for field in (own, other) if raw.get(field.name)]:
            raise BadRequest(asked[0], f"must be false with {INSIDE.name}: nothing comes around such a text", "True")
        return False
    only_other = raw.get(own.name) is None and raw.get(other.name) is not None
    return other.of(raw) if only_other else own.of(raw)


def tokenized(asked: Tokenize, ids: Sequence[int], pieces: Sequence[bytes], spelling: Callable[[int], str], context: int) -> bytes:
    """The answer to ``/tokenize``.

    Args:
        spelling: how the vocabulary writes a token.
    """
    if not asked.llama:
        # vLLM's source, token_strs: ``tokenizer.convert_ids_to_tokens``, which gives tokens as the vocabulary writes them.
        token_strs = stretched([*map(spelling, ids)]) if asked.texts else None
        return encode({"count": len(ids), "max_model_len": context, "tokens": stretched(ids), "token_strs": token_strs})
    if not asked.texts:
        return encode({"tokens": stretched(ids)})
    # Source, common_token_to_piece: control tokens are written out.
    entries = [{"id": token, "piece": _piece(pieces[token] or spelling(token).encode())} for token in ids]
    return encode({"tokens": stretched(entries)})


def _piece(piece: bytes) -> str | list[int]:
    """llama.cpp gives the bytes of a piece that is no whole characters."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def parse_detokenize(body: bytes) -> Detokenize:
    """
    Raises:
        BadRequest: and nothing else, whatever the bytes.
    """
    raw = decode_object(body)
    tokens, ignored = raw.get("tokens"), tuple(printable(name) for name in raw if name not in _OF_IDS)
    if tokens == []:
        return Detokenize(MODEL.of(raw), array("I"), ignored)
    if not isinstance(tokens, list) or (tokens and isinstance(tokens[0], str | list)):
        raise wrong_type("tokens", "an array of token ids", tokens)
    (ids,) = _Prompts(1).read("tokens", tokens)
    assert isinstance(ids, tuple)
    return Detokenize(MODEL.of(raw), array("I", ids), ignored)


def detokenized(ids: Sequence[int], pieces: Sequence[bytes], spelling: Callable[[int], str]) -> bytes:
    """The answer to ``/detokenize``, under both names of the text. Control tokens are written out, as both servers do it.

    Raises:
        BadRequest: an id that is no token's.
    """
    if (most := max(ids, default=0)) >= len(pieces):
        raise BadRequest("tokens", f"must be token ids from 0 to {len(pieces) - 1}", str(most))
    text = b"".join(pieces[token] or spelling(token).encode() for token in ids).decode("utf-8", "replace")
    return encode({"prompt": text, "content": text})


def tokenizer_info(texts: Mapping[str, str]) -> bytes:
    """The answer to ``/tokenizer_info``; ``texts`` that are empty become null."""
    return encode({name: text or None for name, text in texts.items()})
