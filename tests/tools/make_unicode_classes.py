"""Write ``src/quintet/models/unicode_classes.py``, the character classes that pre-tokenizer patterns name.

llama.cpp's classes come from Unicode 15.1.0, whatever Python runs; ours must be the same everywhere. Run in an environment that
has that version of the database::

    pip install unicodedata2==15.1.0 && python tests/tools/make_unicode_classes.py
"""

from __future__ import annotations

import base64
import itertools
import zlib
from pathlib import Path

import unicodedata2

TARGET = Path(__file__).parents[2] / "src/quintet/models/unicode_classes.py"
WHITESPACE = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
"""The property White_Space; stable since Unicode 6.3."""
CLASSES = {"L": 2, "N": 3, "P": 4, "S": 5, "M": 6}

TEXT = '''"""Unicode {version} character classes, written by ``tests/tools/make_unicode_classes.py``; do not edit."""

OTHER, SPACE, LETTER, NUMBER, PUNCTUATION, SYMBOL, MARK = range(7)

RUNS = (
{lines}
)
"""Base 85 of zlib of little-endian base-128 numbers, one per run of code points of one class from U+0000 on: length * 8 + class."""
'''


def class_of(code: int) -> int:
    return 1 if code in WHITESPACE else CLASSES.get(unicodedata2.category(chr(code))[0], 0)


def encode() -> str:
    data = bytearray()
    for kind, run in itertools.groupby(map(class_of, range(0x110000))):
        value = sum(1 for _ in run) * 8 + kind
        while value >= 128:
            data.append(value & 127 | 128)
            value >>= 7
        data.append(value)
    return base64.b85encode(zlib.compress(bytes(data), 9)).decode()


def main() -> None:
    assert unicodedata2.unidata_version == "15.1.0", unicodedata2.unidata_version
    text = encode()
    lines = "\n".join(f'    "{text[i : i + 120]}"' for i in range(0, len(text), 120))
    TARGET.write_text(TEXT.format(version=unicodedata2.unidata_version, lines=lines))


if __name__ == "__main__":
    main()
