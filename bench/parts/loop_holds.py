"""How long ``/livez`` waits while requests come that are dear to read: whatever holds the server's event loop up shows there.

    python -m bench.parts.loop_holds [MODEL] [--case letters ...]

The longest wait during each request, with its status and time. On a machine that does other things too, the line ``idle`` tells what of it
is theirs.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import time
from collections.abc import Callable
from typing import Any

from bench.common.probe import Prober, ask, serving

SIZE = 2_000_000
RNG = random.Random(7)


def letters(count: int) -> str:
    """One word of random letters, the slowest text there is."""
    return "".join(RNG.choices(string.ascii_lowercase, k=count))


def run(text: str, count: int = 400_000) -> Callable[[], dict[str, Any]]:
    """A prompt of one text over and over."""
    return lambda: {"prompt": text * (count // len(text.encode())), "max_tokens": 1}


COMPLETIONS, TOKENIZE, INFILL = "/v1/completions", "/tokenize", "/infill"

CASES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "letters": (COMPLETIONS, lambda: {"prompt": letters(SIZE), "max_tokens": 1}),
    "letters that may fit": (COMPLETIONS, lambda: {"prompt": letters(600_000), "max_tokens": 1}),
    "run of A": (COMPLETIONS, run("A")),
    "run of spaces": (COMPLETIONS, run(" ")),
    "run of line breaks": (COMPLETIONS, run("\n")),
    "run of dots": (COMPLETIONS, run(".")),
    "run of digits": (COMPLETIONS, run("1")),
    "run of CJK": (COMPLETIONS, run("\u4e2d")),
    "run of combining marks": (COMPLETIONS, run("\u0301")),
    "run of emoji, joined": (COMPLETIONS, run("\U0001f468\u200d\U0001f469\u200d")),
    "/tokenize": (TOKENIZE, lambda: {"prompt": letters(SIZE)}),
    "/infill": (INFILL, lambda: {"input_prefix": letters(SIZE // 2), "input_suffix": "b"}),
    "suffix": (COMPLETIONS, lambda: {"prompt": "a", "suffix": letters(600_000), "max_tokens": 1}),
    "bad_words": (COMPLETIONS, lambda: {"prompt": "a", "bad_words": [letters(256) for _ in range(256)], "max_tokens": 1}),
    "100,000 prompts": (COMPLETIONS, lambda: {"prompt": ["a"] * 100_000}),
    "empty prompts": (COMPLETIONS, lambda: {"prompt": [""] * (SIZE // 3)}),
    "128 texts": (COMPLETIONS, lambda: {"prompt": ["the quick fox " * 1100] * 64 + ["a lazy dog " * 1400] * 64, "max_tokens": 0}),
    "128 lists of ids": (COMPLETIONS, lambda: {"prompt": [[number] * 3000 for number in range(1, 129)], "max_tokens": 0}),
    "128 samples": (COMPLETIONS, lambda: {"prompt": "The sky", "n": 128, "max_tokens": 8, "logprobs": 5, "logit_bias": bias()}),
    "wide stop": (COMPLETIONS, lambda: {"prompt": "The sky", "stop": [letters(1024) for _ in range(32)], "max_tokens": 32}),
}


def bias() -> dict[str, float]:
    """As many tokens as are allowed."""
    return {str(token): 1.0 for token in range(100, 1124)}


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    with serving(args.model) as (_, address):
        ask(address, COMPLETIONS, {"prompt": "once", "max_tokens": 1})
        idle = Prober(address)
        idle.start()
        time.sleep(3)
        print(f"idle: /livez {idle.stop() * 1000:.0f} ms")
        for name in args.case:
            path, made = CASES[name]
            body = made()
            prober, begin = Prober(address), time.monotonic()
            prober.start()
            status, _ = ask(address, path, body)
            took, longest = time.monotonic() - begin, prober.stop()
            print(f"{name} ({len(json.dumps(body)):,} bytes): {status}, /livez {longest * 1000:.0f} ms, {took:.2f} s", flush=True)


if __name__ == "__main__":
    main()
