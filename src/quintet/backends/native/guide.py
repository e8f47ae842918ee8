"""What an output must conform to: translated, checked, and followed token by token. The only importer of ``llguidance``.

A guide goes two ways. In a disposable process (``guide_check``), because hostile input may crash or stall any compiler: ``translate``
to the library's own notation, and ``verify``. In the engine's process, only what passed: ``Guides`` compiles it for the model's
vocabulary, and each sequence gets a ``Follower`` of its own.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quintet.request import GuideKind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

U32 = npt.NDArray[np.uint32]

BLANKS = 64
"""Most characters of white space in one place of generated JSON: enough to indent 30 levels, and no model can run on in it for ever."""

CACHE_BYTES = 64 << 20
"""Bound on the text of the guides whose compiled form is kept."""

_JSON = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{BLANKS}}}",
    "lenient": False,
    "coerce_one_of": False,
    # One spelling per character: else the name of a declared property, written with other escapes, passes for an undeclared one.
    "json_allowed_escapes": '"\\bfnrt',
    "json_allow_general_unicode_escapes": False,
}

_TAIL = '\n%llguidance {"no_forcing": true}\n'
"""A mask allows every token that keeps to the guide. The library would else force its own way to cut a fixed text into tokens, which a
model that was trained on another continues badly."""

# The library is imported by the first guide: a server that meets none does not carry it, in two processes.
@cache
def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=10_000,  # 2,000 by default, which an object with 500 optional properties exceeds
        verbose_errors=False,  # else errors hold dumps of the parser
    )



_IGNORED = frozenset({"divisibleBy", "extends", "disallow", "x-guidance"})
"""Keywords of old drafts that restrict values and that the compiler takes for unknown ones, and the compiler's own options."""

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems", "items"})
_SCHEMAS = frozenset({"items", "additionalProperties", "additionalItems", "not", "contains"})

_WALKS, _WALK_BYTES = 4, 48  # through a guide when it is verified


class GuideError(ValueError):
    """The guide cannot be followed; ``str(error)`` is client-safe and says why, as a rule: "must ..."."""


def translate(kind: GuideKind, text: str) -> str:
    """A guide in the library's own notation.

    Raises:
        GuideError: not a guide of this kind, or one with a keyword that cannot be enforced.
    """
    try:
        return _TRANSLATORS[kind](text)
    except GuideError:
        raise
    except RecursionError:
        raise GuideError("must not be nested so deeply") from None
    except Exception as error:  # the library raises what it likes; each of it is about the text
        raise GuideError(f"must be a valid {_NAMES[kind]}: {_line(str(error))}") from None


def verify(kind: GuideKind, grammar: str) -> None:
    """Compile for a vocabulary of bytes and follow it a little; may crash or take for ever, so only in a disposable process.

    Raises:
        GuideError: it does not compile, cannot be enforced as a whole, is too complex, or admits no text at all.
    """
    from llguidance import LLMatcher

    bad, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_limits())
    if bad or messages:  # a warning is about something that would not be enforced
        raise GuideError(f"must be a valid {_NAMES[kind]} that can be enforced: {_line(messages[0])}")
    first = Guides([*(bytes([byte]) for byte in range(256)), b""], frozenset({256}), 257).follow(grammar)
    for seed in range(_WALKS):
        _walk(first.copy(), random.Random(seed))


def _walk(follower: Follower, rng: random.Random) -> None:
    mask = np.zeros(9, np.uint32)
    for _ in range(_WALK_BYTES):
        if not follower.fill(mask):
            raise GuideError(f"must admit some text and be less complex: {_line(follower.error or 'nothing conforms to it')}")
        token = rng.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
        if token == 256:
            return
        if not follower.consume(token):
            raise GuideError(f"must be less complex: {_line(follower.error)}")


class Follower:
    """Where one sequence stands in its guide. Once in error it stays so; nothing here raises for what a guide says."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.consumed = 0

    def copy(self) -> Follower:
        """Another one at the start."""
        return Follower(self._matcher.deep_copy())

    @property
    def error(self) -> str:
        """Why it cannot go on; empty = it can."""
        return self._matcher.get_error().partition("\n")[0]

    def fill(self, mask: U32) -> bool:
        """Write the tokens that may come next: uint32 [ceil(V/32)], bit *i* of word *w* is token 32 w + i.

        End-of-sequence tokens are among them exactly if the text so far conforms. Drops the GIL.

        Returns:
            False: there is none, or an error; the mask is undefined.
        """
        data = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: len(mask)]  # it may have a word more
        if self._matcher.is_error() or not data.any():
            return False
        mask[:] = data
        return True

    def consume(self, token: int) -> bool:
        """Go on by a token; False: it may not come here, or an error."""
        self.consumed += 1
        return self._matcher.consume_token(token)


class Guides:
    """Compiles guides for one vocabulary, in a thread of its own, and keeps the compiled ones.

    Args:
        pieces: the bytes of each token id; those without are never allowed.
        eos_ids: tokens that end a text which conforms.
        vocab: width of the logits.
    """

    def __init__(self, pieces: Sequence[bytes], eos_ids: frozenset[int], vocab: int) -> None:
        self._pieces = [*pieces, *(b"",) * (vocab - len(pieces))]
        self._eos_ids = eos_ids
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[str, Follower] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def ready(self, grammar: str) -> bool:
        """``follow`` would not have to compile."""
        return grammar in self._kept

    def start(self, grammars: Sequence[str], then: Callable[[], None]) -> None:
        """Compile in the background; ``then`` is called from there."""
        self._pool = self._pool or ThreadPoolExecutor(1, "quintet-guides")
        self._pool.submit(lambda: [self._compiled(grammar) for grammar in grammars]).add_done_callback(lambda _: then())

    def follow(self, grammar: str) -> Follower:
        """A follower at the start of a guide."""
        return self._compiled(grammar).copy()

    def _compiled(self, grammar: str) -> Follower:
        from llguidance import LLMatcher

        with self._lock:
            if grammar not in self._kept:
                self._kept[grammar] = Follower(LLMatcher(self._tokens(), grammar, log_level=0, limits=_limits()))
            self._kept.move_to_end(grammar)
            while len(self._kept) > 1 and sum(map(len, self._kept)) > CACHE_BYTES:
                self._kept.popitem(last=False)
            return self._kept[grammar]

    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        if self._tokenizer is None:
            wrapped = TokenizerWrapper(_Vocabulary(self._pieces, self._eos_ids))
            self._tokenizer = LLTokenizer(wrapped, n_vocab=len(self._pieces), eos_token=sorted(self._eos_ids))
        return self._tokenizer


class _Vocabulary:
    """What the library asks of a tokenizer. Texts are never tokenised, as nothing is forced."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes], eos_ids: frozenset[int]) -> None:
        self.tokens = [piece or b"<%d>" % token for token, piece in enumerate(pieces)]
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.eos_token_id = min(eos_ids)

    def __call__(self, text: bytes) -> list[int]:  # noqa: ARG002 - the library's
        return []


def _schema(text: str) -> str:
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise GuideError("must be a JSON Schema that is an object")
    for part in _parts(schema):
        _refuse_unenforced(part)
    return f"start: %json {json.dumps({**schema, 'x-guidance': _JSON})}{_TAIL}"


def _parts(schema: object) -> Iterator[dict[str, object]]:
    """All schemas inside a schema, itself first; no values that merely look like one."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            for part in value.values():
                yield from _parts(part)
        elif key in _LISTS and isinstance(value, list):
            for part in value:
                yield from _parts(part)
        elif key in _SCHEMAS:
            yield from _parts(value)


def _refuse_unenforced(part: dict[str, object]) -> None:
    for key in _IGNORED & part.keys():
        raise GuideError(f"must not use {key}, which cannot be enforced")
    least, required = part.get("minProperties", 0), part.get("required", [])
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    # A name may come twice in what the compiler admits, and counts twice there.
    if isinstance(least, int | float) and least > max(1, named):
        raise GuideError("must not use minProperties above 1 and above the number of required ones, which cannot be enforced")


def _choice(text: str) -> str:
    options = json.loads(text)
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise GuideError("must be a list of at least one string")
    return f"start: {' | '.join(json.dumps(option, ensure_ascii=False) for option in options)}{_TAIL}"


def _grammar(text: str) -> str:
    if "x-guidance" in text:
        raise GuideError("must not use x-guidance")
    from llguidance.gbnf_to_lark import any_to_lark

    return any_to_lark(text) + _TAIL


def _regex(text: str) -> str:
    from llguidance import regex_to_lark

    return f"start: /{regex_to_lark(text, 'dw')}/{_TAIL}"


_TRANSLATORS: dict[GuideKind, Callable[[str], str]] = {
    GuideKind.JSON_OBJECT: lambda _: _schema('{"type": "object"}'),
    GuideKind.JSON_SCHEMA: _schema,
    GuideKind.REGEX: _regex,
    GuideKind.GRAMMAR: _grammar,
    GuideKind.CHOICE: _choice,
}

_NAMES = {
    GuideKind.JSON_OBJECT: "JSON Schema",
    GuideKind.JSON_SCHEMA: "JSON Schema",
    GuideKind.REGEX: "regular expression",
    GuideKind.GRAMMAR: "grammar (GBNF or Lark)",
    GuideKind.CHOICE: "list of choices",
}


_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_SOURCE = re.compile(r"\n\s*\d+ \| ")


def _line(text: str, limit: int = 160) -> str:
    """A message without the places in what we made of the guide, on one line, in printable ASCII."""
    flat = " ".join(_SOURCE.split(_PLACE.sub("", text))[0].split()).rstrip(".")
    return ascii(flat if len(flat) <= limit else f"{flat[:limit]}...")[1:-1]
