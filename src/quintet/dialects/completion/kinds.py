"""What the fields of ``/completion`` are read as. See ``fields.Kind``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quintet.dialects.fields import MAX_TOKEN_ID, Integer, Number, Object, String, integral, wrong_type
from quintet.errors import BadRequest, Unsupported, printable, shorten

MOST_BIASES = 1024
"""Pairs of ``logit_bias``, and tokens that they come to: an answer tells each of them, for each of its choices."""

Parts = tuple[int | str, ...]
"""A prompt of token ids and texts, in turn."""


class Bias(NamedTuple):
    """The bias of a token, by its id, or of all tokens of a text."""

    token: int | str
    bias: float


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number from 0 on, or a boolean, which is 0 or 1: so llama-server's library for JSON reads one."""

    most: int
    type: str = "integer | boolean"

    @property
    def range(self) -> str:
        return f"0 to {self.most}"

    def read(self, name: str, value: object) -> int:
        return Integer(0, self.most).read(name, int(value) if isinstance(value, bool) else value)


@dataclass(frozen=True, slots=True)
class Biases:
    """Pairs of a token and its bias, or an object of them; ``false`` bans.

    Args:
        characters: most in all texts together; what tokens they stand for is only known once they are tokenised.
    """

    most: int = MOST_BIASES
    characters: int = 1 << 16
    type: str = "array<array> | object"

    @property
    def range(self) -> str:
        return f"up to {self.most} token ids, or texts of up to {self.characters} characters in all, each -100 to 100, or `false`"

    def read(self, name: str, value: object) -> tuple[Bias, ...]:
        pairs = [(_key(key), bias) for key, bias in value.items()] if isinstance(value, dict) else value
        if not isinstance(pairs, list):
            raise wrong_type(name, "an array of pairs, or an object", value)
        if len(pairs) > self.most:
            raise BadRequest(name, f"must have at most {self.most} entries", f"{len(pairs)} entries")
        biases = tuple(self._bias(f"{name}[{at}]", pair) for at, pair in enumerate(pairs))
        characters = sum(len(bias.token) for bias in biases if isinstance(bias.token, str))
        if characters > self.characters:
            raise BadRequest(name, f"must have texts of at most {self.characters} characters in all", f"{characters} characters")
        return biases

    def _bias(self, name: str, pair: object) -> Bias:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise wrong_type(name, "a pair of a token and a bias", pair)
        given, bias = pair
        token = given if isinstance(given, str) else integral(given)
        if token is None or token == "" or (isinstance(token, int) and not 0 <= token <= MAX_TOKEN_ID):
            raise wrong_type(name, "a pair of a token's id, or a text, and a bias", pair)
        return Bias(token, -100.0 if bias is False else Number(-100, 100).read(name, bias))


def _key(key: str) -> int | str:
    """Source, logit_bias: of an object, a key that is a number as a whole is a token's id. Of an array, any string is a text."""
    return int(key) if key.isascii() and key.isdecimal() and len(key) < 11 else key


@dataclass(frozen=True, slots=True)
class LlamaPrompts:
    """Page: a string, an array of strings and token ids (one prompt), an object of ``prompt_string``, or an array of such prompts."""

    most: int
    type: str = "string | array | object"

    @property
    def range(self) -> str:
        return f"1 to {self.most} prompts"

    def read(self, name: str, value: object) -> tuple[Parts, ...]:
        if not isinstance(value, list):
            return (self._one(name, value),)
        if not value:
            raise BadRequest(name, "must not be an empty array", "[]")
        # Source, tokenize_input_prompts: with a number directly in it, the array is one prompt.
        if any(integral(part) is not None for part in value):
            return (self._one(name, value),)
        if len(value) > self.most:
            raise BadRequest(name, f"must be at most {self.most} prompts", f"{len(value)} prompts")
        return tuple(self._one(f"{name}[{at}]", one) for at, one in enumerate(value))

    def _one(self, name: str, value: object) -> Parts:
        if isinstance(value, dict):
            return (self._object(name, value),)
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not value:
            raise wrong_type(name, "a string, an array of token ids and strings, or an object of prompt_string", value)
        return tuple(self._part(f"{name}[{at}]", part) for at, part in enumerate(value))

    def _object(self, name: str, value: dict[str, object]) -> str:
        members = Object().read(name, value)
        if members.get("multimodal_data"):
            raise Unsupported(f"{name}.multimodal_data", "is not supported by this server; leave it out")
        for member in members:
            if member not in ("prompt_string", "multimodal_data"):
                raise BadRequest(f"{name}.{printable(member)}", "is not a member of a prompt")
        if "prompt_string" not in members:
            raise BadRequest(f"{name}.prompt_string", "is required", code="missing_required_parameter")
        return String().read(f"{name}.prompt_string", members["prompt_string"])

    def _part(self, name: str, value: object) -> int | str:
        if isinstance(value, str):
            return value
        number = integral(value)
        if number is None:
            raise wrong_type(name, "a token id or a string", value)
        if not 0 <= number <= MAX_TOKEN_ID:
            raise BadRequest(name, "must be a token id of the model's vocabulary", shorten(value))
        return number


def plain(parts: Sequence[int | str]) -> str | tuple[int, ...] | None:
    """A prompt of one text, or of ids only; ``None`` = of both."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    ids = tuple(part for part in parts if isinstance(part, int))
    return ids if len(ids) == len(parts) else None
