"""A deterministic model over bytes that needs no weights: the whole server runs on it, and every engine property is tested on it.

Its pages hold the token ids themselves, and a position's hidden row is a hash of all ids from 0 on, read through the block
table: a wrong page, table, position or copy changes the output. Logits use only IEEE multiplications and additions per element,
so the text is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from quintet.backends.native.core.loader import PAGE, Loaded, Loader
from quintet.backends.native.core.types import F32, I32, U8, Batch, Meanwhile
from quintet.models.traits import ThinkTags, Traits

EOS = 256
VOCAB = 257
CONTEXT = 4096
_ROW_BYTES = 16  # 8 bytes of hash, 2 of the token itself, 6 unused as a real row's padding would be
_U64 = npt.NDArray[np.uint64]
_LETTERS = {" ": 3.0, **dict.fromkeys("etaoinshr", 2.0), **dict.fromkeys("dlcumwfgypb", 1.0), **dict.fromkeys("vkjxqz.,", 0.0)}
_VOWELS = frozenset(b"aeiouy")


class ToyTokenizer:
    """Bytes are tokens; id 256 ends a sequence.

    Args:
        think: the tags around thinking; ``None`` = it does not think.
    """

    def __init__(self, think: tuple[str, str] | None = None) -> None:
        self.traits = Traits(think=ThinkTags(*think) if think else None, longest=1)

    @property
    def pieces(self) -> Sequence[bytes]:
        """One byte each, and nothing for the end of sequence."""
        return [*(bytes([value]) for value in range(256)), b""]

    @property
    def eos_ids(self) -> frozenset[int]:
        """The end of sequence."""
        return frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        """The text's UTF-8 bytes."""
        return list(text.encode())

    def encode_inside(self, text: str) -> list[int]:
        """The same: nothing is ever added."""
        return self.encode(text)

    def encode_quoted(self, text: str) -> list[int]:
        """The same: no text is a token's."""
        return list(text.encode())

    def spelling(self, token: int) -> str:
        """Printable ASCII as it is, other bytes in hexadecimal."""
        return "<eos>" if token == EOS else chr(token) if 32 < token < 127 else f"<0x{token:02X}>" if token < EOS else ""


class ToyRunner:
    """``Runner`` over the hash of a sequence's tokens."""

    def __init__(self) -> None:
        self._pages = np.zeros((0, PAGE), np.int32)
        self._bias = _bias()

    @property
    def vocab(self) -> int:
        """256 bytes and the end of sequence."""
        return VOCAB

    @property
    def context(self) -> int:
        """Most positions of a sequence."""
        return CONTEXT

    @property
    def window(self) -> int:
        """A row depends on all tokens before it."""
        return 0

    @property
    def page_bytes(self) -> int:
        """A page holds its token ids."""
        return PAGE * 4

    @property
    def row_bytes(self) -> int:
        """Bytes of a hidden row."""
        return _ROW_BYTES

    def allocate(self, pages: int) -> None:
        """Reserve pages; memory becomes resident when it is written."""
        self._pages = np.zeros((pages, PAGE), np.int32)

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        """Write the tokens to their pages, then hash each wanted row's sequence from its pages; uint8 [R, 16].

        Raises:
            ValueError: a token id, page number, length or row out of range; nothing was written.
        """
        ends = batch.starts + batch.lengths
        self._validate(batch, ends)
        if meanwhile:
            meanwhile()
        segments = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        firsts = np.cumsum(batch.lengths) - batch.lengths
        positions = np.arange(len(batch.tokens)) - np.repeat(firsts - batch.starts, batch.lengths)
        self._pages[batch.tables[segments, positions // PAGE], positions % PAGE] = batch.tokens
        hashes = self._prefix_hashes(batch.tables, int(ends.max()))
        rows = np.zeros((len(batch.rows), _ROW_BYTES), np.uint8)
        rows[:, :8] = hashes[segments, positions][batch.rows].astype("<u8")[:, None].view(np.uint8)
        rows[:, 8:10] = batch.tokens[batch.rows].astype("<u2")[:, None].view(np.uint8)
        return rows

    def logits(self, rows: U8) -> F32:
        """float32 [R, 257]: letters after letters, now and then the end; peaked like a trained model's."""
        hashes = np.ascontiguousarray(rows[:, :8]).view("<u8").astype(np.uint64)
        last = np.ascontiguousarray(rows[:, 8:10]).view("<u2")[:, 0]
        noise = _mix(hashes + np.arange(VOCAB, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        uniform = (noise >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        square = uniform * uniform
        logits: F32 = self._bias[last] + np.float32(6) * (square * square)
        return logits

    def logits_of(self, rows: U8, tokens: I32) -> F32:
        """float32 [R]: of each row the logit of its token."""
        logits: F32 = self.logits(rows)[np.arange(len(tokens)), tokens]
        return logits

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's token ids."""
        self._pages[target] = self._pages[source]

    def read_page(self, page: int) -> U8:
        """Its token ids, as bytes."""
        data: U8 = self._pages[page].view(np.uint8).copy()
        return data

    def write_page(self, page: int, data: U8) -> None:
        """Token ids of another time."""
        self._pages[page] = data.view(np.int32)

    def touch_pages(self, first: int, last: int) -> None:
        """They are a few bytes each."""

    def drop_pages(self, pages: Sequence[int]) -> None:
        """They are a few bytes each."""

    def _validate(self, batch: Batch, ends: npt.NDArray[np.int32]) -> None:
        count, used = len(batch.tokens), -(-ends // PAGE)
        _require(bool((batch.lengths >= 1).all()) and int(batch.lengths.sum()) == count, "lengths must be at least 1 and sum to the tokens")
        _require(bool((batch.starts >= 0).all()) and int(ends.max()) <= CONTEXT, f"positions must be below {CONTEXT}")
        _require(bool(((batch.tokens >= 0) & (batch.tokens < VOCAB)).all()), f"token ids must be below {VOCAB}")
        _require(bool(((batch.rows >= 0) & (batch.rows < count)).all()), "rows must index the tokens")
        _require(batch.tables.shape[0] == len(ends) and batch.tables.shape[1] >= int(used.max()), "tables are too short")
        listed = np.arange(batch.tables.shape[1]) < used[:, None]
        pages = batch.tables[listed]
        _require(bool(((pages >= 0) & (pages < len(self._pages))).all()), "page numbers must be below the number allocated")

    def _prefix_hashes(self, tables: npt.NDArray[np.int32], length: int) -> _U64:
        """uint64 [S, length]: at each position a hash of the token ids up to it, as they lie in the pages."""
        pages = tables[:, : -(-length // PAGE)] % len(self._pages)  # entries past a sequence's end may be anything
        tokens = self._pages[pages].reshape(len(tables), -1)[:, :length].astype(np.uint64)
        places = np.arange(length, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
        return _mix(np.cumsum(_mix(tokens * np.uint64(0x9E3779B97F4A7C15) + places), axis=1, dtype=np.uint64))


def toy_loader() -> Loader[ToyTokenizer]:
    """How to load the model ``toy``."""

    def load(progress: Callable[[float], None]) -> Loaded[ToyTokenizer]:
        progress(1.0)
        return Loaded(runner=ToyRunner(), tokenizer=ToyTokenizer(), name="toy", fingerprint="fp_toy_1")

    return load


def _bias() -> F32:
    """float32 [last token, next token]: words of letters, vowels and consonants in turn."""
    bias = np.full((VOCAB, VOCAB), -16, np.float32)
    for letter, weight in _LETTERS.items():
        bias[:, ord(letter)] = weight
    bias[:, EOS] = -0.5
    vowels = np.array([value in _VOWELS for value in range(VOCAB)])
    letters = np.array([chr(value).isalpha() and value < 128 for value in range(VOCAB)])
    bias[np.ix_(vowels, vowels)] -= 2
    bias[np.ix_(letters & ~vowels, letters & ~vowels)] -= 2
    bias[np.ix_(~letters, ~letters)] -= 6
    return bias


def _mix(values: _U64) -> _U64:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)
