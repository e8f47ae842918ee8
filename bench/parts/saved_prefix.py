"""What ``--prefix-cache-dir`` saves: the time to the first token of a long prompt: computed, in memory, known from before a restart.

    python -m bench.parts.saved_prefix [MODEL] [--tokens 1500] [--times 5]

Printed are the best and the median in milliseconds, and the last as a share of the first: at most a tenth is aimed at.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.common.command import model_path
from bench.common.proc import PeerError
from bench.common.prompt import prompt
from bench.memory.footprint import ask, server


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    path, times = Path(model_path(args.model)), range(args.times)
    with tempfile.TemporaryDirectory() as folder:
        with server(path, "--prefix-cache-dir", folder) as (port, _):
            read(port, prompt(args.times, args.tokens))  # pays for memory that is new
            computed = [read(port, prompt(serial, args.tokens)) for serial in times]
            known = [read(port, prompt(serial, args.tokens)) for serial in times]
        with server(path, "--prefix-cache-dir", folder) as (port, _):
            read(port, prompt(args.times + 1, args.tokens))
            restored = [read(port, prompt(serial, args.tokens)) for serial in times]
    print(f"{path.name}, prompts of {args.tokens} tokens: ms to the first token   best  median  cached")
    for name, row in (("computed", computed), ("in memory", known), ("after a restart", restored)):
        seconds = [one for one, _ in row]
        print(f"{name:55} {min(seconds) * 1e3:8.1f} {median(seconds) * 1e3:7.1f} {min(cached for _, cached in row):7d}")
    print(f"after a restart / computed: {min(s for s, _ in restored) / min(s for s, _ in computed):.3f} (best), at most 0.1 is aimed at")


def read(port: int, tokens: list[int]) -> tuple[float, int]:
    """Seconds to the first token of a prompt, and how many of its tokens were cached."""
    begin = time.perf_counter()
    status, answer = ask(port, "POST", "/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0})
    seconds = time.perf_counter() - begin
    if status != 200:
        raise PeerError(f"status {status}: {answer[:300].decode('utf-8', 'replace')}")
    return seconds, json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.exit(f"error: {error}")
