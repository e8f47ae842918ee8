"""Masks for what an output must conform to, followed token by token. The only importer of ``quintet.guides.llguidance``.

How a guide comes here: ``quintet.guides``. What has to do with translating runs in the process where guides are tried; in the engine's
run only ``Compiler`` and the ``Matcher`` of each sequence, on guides that passed. Plain code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quintet.models.pieces import Pieces

if TYPE_CHECKING:
    from quintet.guides.llguidance import LLMatcher, LLParserLimits, LLTokenizer

U32 = npt.NDArray[np.uint32]


FUEL = 5_000_000
"""Expressions that a guide's lexer may build for one mask, up to a second's work. What others have built costs nothing: so that they do not
decide over a text, this is where nearly always the limit on states is met first, which counts the same whoever built them
(docs/decisions/0014). The library's 200,000 a harmless pattern meets on a fresh server."""

TRIED_FUEL = 200_000
"""The same where guides are tried: each is compiled for itself there, and this is soon refused."""


# The library is imported by the first guide: a server that meets none does not carry it, in two processes.
@cache
def _limits(fuel: int) -> LLParserLimits:
    from quintet.guides.llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=10_000,  # 2,000 by default, which an object with 500 optional properties exceeds
        step_max_items=20_000,  # 50,000 by default, with which a mask of an ambiguous grammar takes a second; the time grows as the square
        step_lexer_fuel=fuel,
        max_lexer_states=50_000,  # 250,000 by default, which are 160 MB; a text of 5,000 characters at most needs 20,000
        verbose_errors=False,  # else errors hold dumps of the parser
    )


def notation_of_regex(text: str) -> str:
    """A regular expression in the library's notation; raises what the library likes."""
    from quintet.guides.llguidance import regex_to_lark

    return f"start: /{regex_to_lark(text, 'dw')}/"


def fault(notation: str) -> str:
    """Why the library does not take it as it is; empty = it does. A warning is about something that would not be enforced."""
    from quintet.guides.llguidance import LLMatcher

    _, messages = LLMatcher.validate_grammar_with_warnings(notation, limits=_limits(TRIED_FUEL))
    return messages[0] if messages else ""


class Matcher:
    """Where one sequence stands in its guide. Once in error it stays so; nothing here raises for what a guide says."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.consumed = 0

    def copy(self) -> Matcher:
        """Another one at the same place; cheap, and what becomes of it is nothing to this one."""
        other = Matcher(self._matcher.deep_copy())
        other.consumed = self.consumed
        return other

    def forced(self) -> bytes:
        """The text that must come next, as far as there is no choice in it."""
        return self._matcher.compute_ff_bytes()

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


class Compiler:
    """Compiles guides for one vocabulary.

    Args:
        pieces: the bytes of each token id; those without are never allowed.
        eos_ids: tokens that end a text which conforms, and are allowed nowhere else, whatever their bytes.
        vocab: width of the logits.
        fuel: see ``FUEL``.
    """

    def __init__(self, pieces: Sequence[bytes], eos_ids: frozenset[int], vocab: int, fuel: int = FUEL) -> None:
        self._fuel = fuel
        self.pieces = Pieces.of(pieces, vocab)
        self.eos_ids = eos_ids
        self._tokenizer: LLTokenizer | None = None

    def compile(self, grammar: str) -> Matcher:
        """A matcher at the start of a guide."""
        from quintet.guides.llguidance import LLMatcher

        return Matcher(LLMatcher(self._tokens(), grammar, log_level=0, limits=_limits(self._fuel)))

    def cut(self, text: bytes) -> list[int]:
        """``text`` in the longest tokens, from its beginning; what is not whole characters is left out."""
        return self._tokens().greedy_tokenize(text.decode("utf-8", "ignore"))

    def _tokens(self) -> LLTokenizer:
        from quintet.guides.llguidance import LLTokenizer, TokenizerWrapper

        if self._tokenizer is None:
            wrapped = TokenizerWrapper(_Vocabulary(self.pieces, self.eos_ids))
            self._tokenizer = LLTokenizer(wrapped, n_vocab=len(self.pieces), eos_token=sorted(self.eos_ids))
        return self._tokenizer


class _Vocabulary:
    """What the library asks of a tokenizer. Texts are never tokenised, as nothing is forced."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes], eos_ids: frozenset[int]) -> None:
        # A model's configuration may name an ordinary token as its end. In the midst of a guide its bytes would end the text there.
        special = {*eos_ids, *(token for token, piece in enumerate(pieces) if not piece)}
        self.tokens = [b"<%d>" % token if token in special else piece for token, piece in enumerate(pieces)]
        self.special_token_ids = sorted(special)
        self.eos_token_id = min(eos_ids)

    def __call__(self, text: bytes) -> list[int]:  # noqa: ARG002 - the library's
        return []
