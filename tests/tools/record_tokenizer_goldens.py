"""Record what llama.cpp makes of the golden strings, with its own tokenizer, into ``tests/golden/tokenizer``.

    python -m venv oracle && oracle/bin/pip install xllamacpp==2026.10.11549 gguf
    oracle/bin/python -m tests.tools.record_tokenizer_goldens SmolLM2-135M-Instruct.Q4_1.gguf qwen2.5-coder-0.5b-instruct-q4_k_m.gguf

run in the repository's root. Written are the two models' vocabularies (``smollm2.gguf.xz``, ``qwen2.gguf.xz``), the strings, and for
each vocabulary (those two, and the made-up ones of ``vocab_files.py``) the ids and roles. Nothing of the code under test is used,
except the list of pre-tokenizer names.
"""

from __future__ import annotations

import ctypes
import json
import lzma
import random
import sys
import tempfile
from pathlib import Path

import gguf
from tests.tools import vocab_files
from tests.tools.llama_vocab import LlamaVocab, library
from tests.tools.vocab_files import CHARACTERS, GOLDEN

from quintet.models.pretokenizers import PRETOKENIZERS

TEXTS = [
    *("", " ", "  ", "\n", "\r\n", "\t", " \n ", "a", " a", "a ", "\u00e9", "e\u0301", "\u65e5"),
    *("Hello world", " Hello world", "Hello,  world!"),
    *("I'm you're we've they'll he'd it's don't", "I'M YOU'RE WE'VE THEY'LL HE'D IT'S DON'T", "rock 'n' roll '''", "x'sy'ty'rez"),
    *("3.14159 1,000,000 1e-9 0xDEADBEEF 2024-01-01T00:00:00Z", "1234567890" * 3),
    *("v1.2.3-rc4+build.56", "\u0661\u0662\u0663 \u2167 \xbd \xb2"),
    "def f(x: int) -> int:\n    return x ** 2 if x else -1  # comment\n\n\nclass A:\n\tpass\n",
    '#include <stdio.h>\nint main(void) {\n  printf("%d\\n", 1<<3);\n  return 0;\n}\n',
    "const f = async ({a, b}) => { await fetch(`/x/${a}?b=${b}`); };\r\n",
    '{"key": [1, 2.5, null, true], "nested": {"a\\n": "\\u00e9"}}',
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';\n-- done\n",
    '<html><body class="a b">&nbsp;</body></html>\n\n\n\n',
    "if a==b&&c!=d||e<=f:g+=1;h->i::j...k??l",
    "Gr\u00fc\u00dfe aus K\u00f6ln, na\u00efve caf\u00e9, \u0141\u00f3d\u017a, \u0130stanbul, \u01c5 \ufb01 \u1e9e",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002\u4e2d\u6587\u53e5\u5b50\uff0c\u6d4b\u8bd5\uff01",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4.",
    "\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f1e9\U0001f1ea \u2764\ufe0f\U0001f525 \U0001f9d1\U0001f3fb\u200d\U0001f91d\u200d\U0001f9d1\U0001f3ff",
    "Z\u0361\u0351\u0302a\u0300\u0301\u0302\u0303l\u0334\u0335g\u0336o\u0337",
    "\ufeffBOM \u200b\u200e\u202e\u2066 \u00ad\u2028\u2029\x85 \xa0\u3000\u2003\u1680x",
    "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x1b\x1c\x1f\x7f\x80\x9f",
    "\ufffd\ufffe\uffff \U0010ffff \ue000 \ud7ff \U000e0001 \U0002ebf0 \U0001d4b3",
    "\xc3\xa9 \xe2\x82 \xf0\x9f\x98 mojibake \xc2\xa0 \xff\xfe",
    "https://user:pw@example.com:8080/a/b.c?d=e&f=%20#g mail@example.org /usr/local/bin C:\\Windows\\x",
    "tabs\t\tand   runs    of     spaces      \n\n  \n   \n\tx\n ",
    "lots\n\n\n\nof\r\n\r\n\nnewlines\r\r",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case iPhone XMLHttpRequest \u00c9COLE \u00e9A\u00e9",
    "<unk><s></s> [INST] [/INST] <|x|> <|im_start| > <|IM_END|> <| im_end|> <|im_end|",
    "\u2581\u2581a\u2581 b\u2581<0x0A><0x41>\u0120\u010a\u0100",
    "</s</s>> <s><s> <0xFF>",
]

RUNS = ["A", "a", " ", "\n", "\t", ".", "-", "=", "'", "1", "0"]
RUNS += ["\u65e5", "\u3042", "\xe9", "\u0301", "\u200d", "\U0001f600", "\xa0", "\r\n", "ab", " a", "\u2581", "<", "_"]


SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<repo_name>", "</s>", "<file_sep>", "<jupyter_code>"]


def random_text(rng: random.Random, alphabet: list[str]) -> str:
    if rng.random() < 0.3:
        top = rng.choice([0x250, 0x3100, 0x110000])
        return "".join(chr(code) for code in (rng.randrange(top) for _ in range(rng.randrange(1, 12))) if not 0xD800 <= code < 0xE000)
    few = rng.sample(alphabet, rng.choice([4, 12, len(alphabet)]))
    return "".join(rng.choice(few) * rng.choice([1, 1, 1, 2, 3, 7]) for _ in range(rng.choice([2, 4, 8, 16, 30])))


def golden_strings(specials: list[str]) -> list[str]:
    """Strings for the real vocabularies: written ones, long runs, and random mixtures, some with special-token texts."""
    rng = random.Random(3)
    words = ["the", " the", "ing", "'s", "'LL", "function", "\n\n", "    ", "123", "12345", "\u0915\u094d", "\U0001f468\u200d\U0001f469"]
    found = [*TEXTS, *(run * n for run in RUNS for n in (2, 3, 5, 17, 64)), *(run * 700 for run in RUNS)]
    found += [f"x{run * 33}y" for run in RUNS]
    for special in specials:
        found += [special, f"a{special} b", f" {special}{special}\n", special[:-1], special + special[1:]]
    while len(found) < 700:
        text = random_text(rng, CHARACTERS + words)
        found.append(text + rng.choice(specials) + random_text(rng, CHARACTERS) if rng.random() < 0.15 else text)
    return found


def pattern_strings() -> list[str]:
    """Short strings of ``CHARACTERS`` for telling pre-tokenizers apart."""
    rng = random.Random(5)
    more = ["'s", "'S", "'ll", "'VE", "  ", "\n\n", "    ", "123", "12345", "<sentinel:1>", "IMGIMGABZ", "\r\n", " \n", "!abz", " aba"]
    mixed = ["".join(rng.choice(CHARACTERS + more) for _ in range(rng.choice([6, 12, 24]))) for _ in range(160)]
    contractions = [f"a'{end}{after}" for end in ("s", "t", "m", "d", "re", "ve", "ll", "S", "lL", "x") for after in "az1 "]
    return [*mixed, *contractions, "abz", "bbba aba", "AABZ\nabz"]


def strip_model(source: Path, target: Path) -> Path:
    """A vocabulary-only copy of a model file."""
    reader = gguf.GGUFReader(source)
    prefix = "tokenizer.ggml."
    keys = {name.removeprefix(prefix): field.contents() for name, field in reader.fields.items() if name.startswith(prefix)}
    return vocab_files.write_vocabulary(
        target,
        keys["tokens"],
        keys["token_type"],
        pre=keys["pre"],
        merges=keys["merges"],
        ids={name: value for name, value in keys.items() if name.endswith("_id")},
        flags={name: value for name, value in keys.items() if isinstance(value, bool)},
        name=reader.fields["general.name"].contents(),
    )


def dump(name: str, value: object) -> None:
    (GOLDEN / f"{name}.json").write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def record(lib: ctypes.CDLL, name: str, path: Path, strings: list[str]) -> None:
    vocab = LlamaVocab(path, lib)
    control = [token for token in range(vocab.size) if not vocab.piece(token)]
    dump(name, {"roles": vocab.roles(), "silent": control, "ids": [vocab.encode(text) for text in strings]})
    vocab.close()


def record_patterns(lib: ctypes.CDLL, folder: Path) -> None:
    """For each string the different results, and for each pre-tokenizer which of them is its own."""
    strings = pattern_strings()
    by_name = {}
    for name in PRETOKENIZERS:
        vocab = LlamaVocab(vocab_files.write_pairs(folder / "pairs.gguf", name), lib)
        by_name[name] = [vocab.encode(text) for text in strings]
        vocab.close()
    results = [[list(ids) for ids in dict.fromkeys(tuple(ids[i]) for ids in by_name.values())] for i in range(len(strings))]
    dump(
        "patterns",
        {
            "strings": strings,
            "results": results,
            "names": {name: [results[i].index(ids[i]) for i in range(len(strings))] for name, ids in by_name.items()},
        },
    )


def main(smollm2: Path, qwen2: Path) -> None:
    lib = library()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    strings = golden_strings(SPECIALS)
    dump("strings", strings)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, source in (("smollm2", smollm2), ("qwen2", qwen2)):
            path = strip_model(source, folder / f"{name}.gguf")
            (GOLDEN / f"{name}.gguf.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
            record(lib, name, path, strings)
        tokens = gguf.GGUFReader(folder / "smollm2.gguf").fields["tokenizer.ggml.tokens"].contents()
        record(lib, "pieces", vocab_files.write_ranked_pieces(folder / "pieces.gguf", tokens, 6000), strings)
        rng = random.Random(13)
        dump("tied_strings", ["".join(rng.choice("aab  ") for _ in range(rng.choice([3, 9, 30, 80]))) for _ in range(300)])
        record(lib, "tied", vocab_files.write_tied_pieces(folder / "tied.gguf"), json.loads((GOLDEN / "tied_strings.json").read_text()))
        record_patterns(lib, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
