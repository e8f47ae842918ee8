"""Vocabulary-only GGUF files for tests: unpacked from the golden folder, or made up. Nothing here uses the code under test."""

from __future__ import annotations

import lzma
import random
from pathlib import Path

import gguf

GOLDEN = Path(__file__).parents[1] / "golden/tokenizer"

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

CHARACTERS = [
    *"abzABZ019 \n\r\t'sSltdmrevR!.,$+<>^`~|(){}[]_-/\\#@\"",
    *"\xe9\xdf\u03a9\u1f7d\u2126\u03ce\u65e5\u3042\u30a2\ud55c\u3105\u3001\u3002\u2026\uff01\u0301\u0903\u200d\xa0\u3000\x85",
    *"\U0001f44d\xb2\u2167\u0663\u01c5\u02b0\ufb00\U0001d4b3\x00\x1c\ud7ff\ue000\u0e17\u20ac\u2ffc",
]
"""At least one character of every class that some pre-tokenizer tells from the others."""


WHOLE_WORDS = ["abz", "bbba", "\u0120aba", "AABZ"]
"""Tokens that no merge makes: only a pre-tokenizer with whole words uses them."""


def unpack(name: str, folder: Path) -> Path:
    """``<name>.gguf.xz`` of the golden folder, unpacked into ``folder``."""
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.gguf.xz").read_bytes()))
    return path


def write_vocabulary(
    path: Path,
    tokens: list[str],
    types: list[int] | None = None,
    *,
    model: str = "gpt2",
    pre: str = "",
    merges: list[str] | None = None,
    scores: list[float] | None = None,
    ids: dict[str, int] | None = None,
    flags: dict[str, bool] | None = None,
    name: str = "test",
    template: str = "",
) -> Path:
    """A GGUF file that llama.cpp loads as a vocabulary. ``ids`` and ``flags`` go under ``tokenizer.ggml.``."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    for key, value in {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types or [NORMAL] * len(tokens))
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for key, number in (ids or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{key}", number)
    for key, flag in (flags or {}).items():
        writer.add_bool(f"tokenizer.ggml.{key}", flag)
    if template:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def alphabet() -> str:
    """Byte-level BPE's letters for the bytes 0 to 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


def write_pairs(path: Path, pre: str) -> Path:
    """A byte-level vocabulary that joins any two of ``CHARACTERS``, ranked at random: where a pre-tokenizer cuts shows in the ids."""
    letters = alphabet()
    spelled = ["".join(letters[byte] for byte in char.encode("utf-8", "surrogatepass")) for char in CHARACTERS]
    pairs = [(a, b) for a in spelled for b in spelled]
    random.Random(7).shuffle(pairs)
    joins = [(char[:i], char[i]) for char in spelled for i in range(1, len(char))] + pairs
    tokens = dict.fromkeys([*letters, *(a + b for a, b in joins), *WHOLE_WORDS])
    return write_vocabulary(path, list(tokens), pre=pre, merges=list(dict.fromkeys(f"{a} {b}" for a, b in joins)), ids={"bos_token_id": 0})


def byte_tokens() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def write_sentence_pieces(path: Path, pieces: list[str], scores: list[float], **more: object) -> Path:
    """A SentencePiece vocabulary: the three usual control tokens, the bytes, and ``pieces``."""
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens(), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    return write_vocabulary(path, tokens, types, model="llama", scores=[0.0] * 259 + scores, **more)  # type: ignore[arg-type]


def write_ranked_pieces(path: Path, byte_level: list[str], count: int) -> Path:
    """A SentencePiece vocabulary of the first ``count`` whole-character tokens of a byte-level one; earlier is better."""
    values = {char: byte for byte, char in enumerate(alphabet())}
    pieces: dict[str, None] = {}
    for token in byte_level:
        raw = bytes(values[char] for char in token) if all(char in values for char in token) else b"\xff"
        text = raw.decode("utf-8", "replace").replace(" ", "\u2581")
        if "\ufffd" not in text and "\0" not in text and not (text.startswith("<") and text.endswith(">")):
            pieces[text] = None
    chosen = list(pieces)[:count]
    return write_sentence_pieces(path, chosen, [-float(rank) for rank in range(len(chosen))])


def write_tied_pieces(path: Path) -> Path:
    """A SentencePiece vocabulary of random strings over three letters with few different scores, so that position decides often."""
    rng = random.Random(11)
    words = {"".join(rng.choice("ab\u2581") for _ in range(rng.randrange(2, 8))) for _ in range(120)}
    pieces = ["a", "b", "\u2581", *sorted(words)]
    return write_sentence_pieces(
        path, pieces, [float(rng.randrange(-3, 0)) for _ in pieces], flags={"add_space_prefix": False, "add_eos_token": True}
    )
