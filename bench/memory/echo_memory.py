"""Memory that one request adds: a prompt that fills the context, echoed with 20 alternatives per token, as JSON and as a stream.

    python -m bench.memory.echo_memory [MODEL] [--context 2048 8192]

A server of its own for each; the peak of both processes' resident memory during the request, less what they held before it. The pages of
the KV cache that the prompt fills are in it, and no others: the cache has no more, of which some would be made ready for the next request.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.support.loading import native_loader

from bench.common.command import model_path
from bench.common.probe import url_of
from quintet.backends.native.core.loader import PAGE

MIB = 1 << 20
LIMIT = 300
SPARE = 4
"""Pages for the short request before."""


def field(pid: int, name: str) -> int:
    """Bytes, of ``/proc/PID/status``."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert found
    return int(found[1]) * 1024


def family(pid: int) -> list[int]:
    """The process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [pid, *map(int, children)]


def ask(url: str, prompt: list[int], stream: bool) -> int:
    """Bytes of the answer, read piece by piece."""
    body = {"prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 20, "temperature": 0, "stream": stream}
    request = urllib.request.Request(f"{url}/cerebras/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    size = 0
    with urllib.request.urlopen(request, timeout=600) as reply:
        while part := reply.read1(1 << 16):
            size += len(part)
    return size


def measure(model: str, context: int, page_bytes: int, stream: bool) -> int:
    """MiB added; prints a line."""
    cache = (context // PAGE + SPARE) * page_bytes
    command = [sys.executable, "-m", "quintet", "serve", model, "--port", "0", "--ctx-size", str(context), "--kv-cache", str(cache)]
    with subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = url_of(server)
            ask(url, list(range(1000, 1040)), stream)
            pids = family(server.pid)
            before = [field(pid, "VmRSS") for pid in pids]
            for pid in pids:
                Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # the peak counts from now
            begin = time.monotonic()
            size = ask(url, [1000 + index * 7 % 20_000 for index in range(context - 1)], stream)
            took = time.monotonic() - begin
            added = [(field(pid, "VmHWM") - had) // MIB for pid, had in zip(pids, before, strict=True)]
        finally:
            server.terminate()
    form = "stream" if stream else "JSON"
    parts = f"front {added[0]}, engine {sum(added[1:])}"
    print(f"context {context}, {form}: {sum(added)} MiB ({parts}), {size / MIB:.1f} MiB sent in {took:.1f} s")
    return sum(added)


def main() -> None:
    """Exit code 1 over the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--context", type=int, nargs="+", default=[2048, 8192])
    args = parser.parse_args()
    page_bytes = native_loader(Path(model_path(args.model)), threads=1, context=PAGE)(lambda _share: None).runner.page_bytes
    added = [measure(args.model, context, page_bytes, stream) for context in args.context for stream in (False, True)]
    sys.exit(max(added) > LIMIT)


if __name__ == "__main__":
    main()
