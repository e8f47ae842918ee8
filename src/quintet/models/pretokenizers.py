"""Pre-tokenizers of byte-level BPE: how text is cut into words before merging, as llama.cpp does it for each ``tokenizer.ggml.pre``.

llama.cpp runs patterns one after the other, each inside the pieces that the one before left; what a pattern does not match
stays a piece. A pattern with Unicode classes runs on a copy of the text in which every non-ASCII character is replaced by one
letter for its class, the others on the text itself with non-ASCII white space replaced by a vertical tab. Here the former are
byte patterns, the latter string patterns, and both are written so that no input needs more than linear time: every alternative
either consumes what it scanned, or leaves it to one that does.
"""

from __future__ import annotations

import base64
import functools
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from quintet.models import unicode_classes as classes

COLLAPSED = bytes([0xD0, 0x0B, 0xD2, 0xD1, 0xD3, 0xD5, 0xD4])
"""The byte that stands for a non-ASCII character of each class in ``unicode_classes``."""

SETS = {
    "L": r"A-Za-z\xd2",
    "N": r"0-9\xd1",
    "P": r"!-#%-*,-/:;?@\[-\]_{}\xd3",
    "S": r"$+<->^`|~\xd5",
    "M": r"\xd4",
    "U": r"A-Z\xd2",  # letters except a-z
    "D": r"a-z\xd2",  # letters except A-Z
}
"""What ``<L>`` and so on in a byte pattern stand for, inside brackets: the class's ASCII members and its collapsed byte."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One pattern.

    Args:
        pattern: a Python regular expression; matches and the gaps between them become pieces.
        collapsed: a byte pattern over the collapsed text, in which ``<L>`` names a set of ``SETS``; else a string pattern.
        tail: only a match that ends its piece counts.
    """

    pattern: str
    collapsed: bool = True
    tail: bool = False

    def compile(self) -> re.Pattern[str] | re.Pattern[bytes]:
        if not self.collapsed:
            return re.compile(self.pattern, re.ASCII)
        source = re.sub("<([LNPSMUD])>", lambda match: SETS[match[1]], self.pattern)
        return re.compile(source.encode())


def literal(pattern: str) -> Stage:
    return Stage(pattern, collapsed=False)


@dataclass(frozen=True, slots=True)
class Rules:
    """A pre-tokenizer and what llama.cpp ties to its name.

    Args:
        stages: patterns in order.
        whole_words: a word that is in the vocabulary is that token, whatever the merges say (``ignore_merges``).
        add_bos: a BOS is added unless the metadata says otherwise.
    """

    stages: tuple[Stage, ...]
    whole_words: bool = False
    add_bos: bool = False


CONTRACTION = "(?:'[sStTmMdD]|'[rRvV][eE]|'[lL][lL])"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PUNCTUATED = rf" ?[^\s<L><N>]+[\r\n]*|{SPACES}"
WORD = r"[^\r\n<L><N>]?[<L>]+"
CASED = r"[^\r\n<L><N>]?[<U>]*[<D>]+{0}|[^\r\n<L><N>]?[<U>]+[<D>]*{0}"
SLASHED = rf" ?[^\s<L><N>]+[\r\n/]*|{SPACES}"
MARKS = r"[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"
CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
HANGUL = r"[\uac00-\ud7a3\u3131-\u318e]+"
CJK_MARKS = r"[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
ALPHABETS = (  # cased scripts; escapes, because some of these look or normalise like others
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386"
    "\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
    "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134"
    "\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)

GPT2 = Stage(r"'(?:[stmd]|re|ve|ll)| ?[<L>]+| ?[<N>]+| ?[^\s<L><N>]+|\s+(?!\S)|\s+")
DIGIT = Stage("[<N>]")
LLAMA3 = Stage(rf"{CONTRACTION}|{WORD}|[<N>]{{1,3}}|{PUNCTUATED}")
QWEN2 = Stage(rf"{CONTRACTION}|{WORD}|[<N>]|{PUNCTUATED}")
GPT4O = Stage(rf"{CASED.format(CONTRACTION + '?')}|[<N>]{{1,3}}|{SLASHED}")
DEEPSEEK3 = (
    Stage("[<N>]{1,3}"),
    literal(KANA),
    Stage(r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n<L><P><S>]?[<L><M>]+| ?[<P><S>]+[\r\n]*|" + SPACES),
)
BLOOM = literal(r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+")

RULES: dict[tuple[str, ...], Rules] = {
    ("default", ""): Rules((Stage(r"[<P>$+<=>^~|]+"), GPT2, Stage("[<N>]+"), literal("[0-9]{3}"))),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"): Rules((LLAMA3,), True, True),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): Rules((LLAMA3,)),
    ("glm4", "glm5"): Rules((LLAMA3,), whole_words=True),
    ("minicpm5",): Rules((Stage("[<N>]{1,3}"), Stage(rf"{CONTRACTION}|{WORD}|[<N>]+|{PUNCTUATED}")), whole_words=True),
    (
        *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        *("bailingmoe", "bailingmoe2", "llada-moe"),
    ): Rules((QWEN2,)),
    ("qwen35",): Rules((Stage(rf"{CONTRACTION}|[^\r\n<L><N>]?[<L><M>]+|[<N>]| ?[^\s<L><M><N>]+[\r\n]*|{SPACES}"),)),
    ("laguna",): Rules((literal(r"[^\n]+|\n+"), QWEN2)),
    ("ufakzeka",): Rules((Stage(rf"{WORD}|[<N>]|{PUNCTUATED}"),)),
    ("seed-coder",): Rules((Stage(rf"{CONTRACTION}|{WORD}|[<N>]| ?[^\s<L><N>\r\n]+|{SPACES}"),)),
    ("exaone-moe",): Rules(
        (Stage(rf"{CONTRACTION}|[^\r\n<L><N>]?[<L>](?:[<L><M>]++| [<L>])*+|[<N>]| ?[^\s<L><N>]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"),)
    ),
    ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"): Rules((GPT2,)),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"): Rules((DIGIT, GPT2)),
    ("falcon",): Rules((Stage(r"[<P>$+<=>^~|`]+"), GPT2, literal("[0-9]{3}"))),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): Rules((GPT4O,)),
    ("tekken",): Rules((Stage(rf"{CASED.format('')}|[<N>]|{SLASHED}"),), whole_words=True, add_bos=True),
    ("deepseek-llm",): Rules(
        (
            literal(r"[\r\n]"),
            literal(rf"\s?[{ALPHABETS}]+"),
            literal(rf"\s?{MARKS}+"),
            Stage(r"\s+", collapsed=False, tail=True),
            literal(CJK),
            Stage("[<N>]+"),
        )
    ),
    ("deepseek-coder",): Rules((literal(r"[\r\n]"), Stage(r"\s?[<L>]+"), Stage(r"\s?[<P>]+"), literal(CJK), DIGIT)),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): Rules(DEEPSEEK3),
    ("spark2_5",): Rules(
        (
            *DEEPSEEK3[:2],
            Stage(r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n<L><P><S>]?[<L><M>]+| ?[<P><S>]+|[\r\n]|\s+(?!\S)|\s+"),
            DIGIT,
        )
    ),
    ("youtu",): Rules(
        (
            literal(rf"{HANGUL}|{CJK_MARKS}|[\u3105-\u312f]+|{KANA}"),
            Stage(rf"[^\r\n<L><N>]?[<L><M>]+{CONTRACTION}?|[<N>]|{SLASHED}"),
        ),
        whole_words=True,
    ),
    ("poro-chat", "bloom", "gpt3-finnish"): Rules((BLOOM,)),
    ("viking",): Rules((BLOOM, DIGIT)),
    ("chameleon",): Rules(
        (
            literal("<sentinel:[0-9]+>"),
            literal("IMGIMG[A-I]{1,4}Z"),
            literal(r"[\t\n]|    |  "),
            DIGIT,
            Stage(r"[<P>!-/:-@\[-`{-~]"),
            GPT2,
        ),
        add_bos=True,
    ),
}

PRETOKENIZERS = {name: rules for names, rules in RULES.items() for name in names}
"""By ``tokenizer.ggml.pre``; the empty name is a file without that key."""


class Pretokenizer:
    """Cuts text into words.

    Args:
        stages: patterns in order, each cutting the pieces of the one before.
    """

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        self._stages = [(stage, stage.compile()) for stage in stages]

    def split(self, text: str) -> list[str]:
        """The words of ``text``; joined, they are ``text``. Linear time."""
        ends = [len(text)] if text else []
        collapsed, plain = b"", ""
        for stage, pattern in self._stages:
            if stage.collapsed:
                collapsed = collapsed or collapse(text)
            else:
                plain = plain or _plain_spaces(text)
            ends = _cut(pattern, collapsed if stage.collapsed else plain, ends, stage.tail)
        starts = [0, *ends]
        return [text[start:end] for start, end in zip(starts, ends, strict=False)]


def _cut(pattern: re.Pattern[str] | re.Pattern[bytes], view: str | bytes, ends: list[int], tail: bool) -> list[int]:
    """The ends of the pieces after one pattern, from the ends before it."""
    cut: list[int] = []
    add, find = cut.append, pattern.finditer
    start = 0
    for end in ends:
        if end - start > 1:  # a single character cannot be cut
            for match in find(view, start, end):  # type: ignore[arg-type]
                begin, stop = match.span()
                if tail and stop != end:
                    continue
                if begin > start:
                    add(begin)
                add(stop)
                start = stop
        if start < end:
            add(end)
            start = end
    return cut


@functools.cache
def _runs() -> tuple[list[int], list[int]]:
    """Where each run of code points of one class ends, and its class; out of ``unicode_classes.RUNS``, where its form is told."""
    ends, kinds = [], []
    value = shift = end = 0
    for byte in zlib.decompress(base64.b85decode(classes.RUNS)):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            end += value >> 3
            ends.append(end)
            kinds.append(value & 7)
            value = shift = 0
    return ends, kinds


def class_of(code: int) -> int:
    """The class of a code point, one of ``unicode_classes``."""
    ends, kinds = _runs()
    return kinds[bisect_right(ends, code)]


class _Memo(dict[int, int]):
    """Code point -> code point, computed when first met. Bounded: a text may hold all that there are."""

    def __init__(self, compute: Callable[[int], int]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, code: int) -> int:
        if len(self) >= MEMO:
            self.clear()
        self[code] = found = self._compute(code)
        return found


MEMO = 1 << 15
_collapsed = _Memo(lambda code: code if code < 128 else COLLAPSED[class_of(code)])
_plain = _Memo(lambda code: 0x0B if code > 127 and class_of(code) == classes.SPACE else code)


def collapse(text: str) -> bytes:
    """One byte per character: ASCII as it is, anything else by its class."""
    return text.encode() if text.isascii() else text.translate(_collapsed).encode("latin-1")


def _plain_spaces(text: str) -> str:
    """The text with non-ASCII white space replaced by a vertical tab, as llama.cpp's pattern library sees it."""
    return text if text.isascii() else text.translate(_plain)
