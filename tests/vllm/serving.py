"""``quintet serve --engine vllm`` in a process of its own, on one of the models for tests."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests.support.processes import ENVIRONMENT
from tests.vllm.models import folder

SIZES = ("--engine", "vllm", "--ctx-size", "512", "--kv-cache", "64MiB", "--dtype", "float32")
EAGER = ("--vllm-arg", "enforce_eager=true")
SERVE = ("-m", "quintet", "serve", "--port", "0", *SIZES)
START_S = 600.0


@contextlib.contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[str, int]]:
    """A server under the model's name: its address, with /v1, and the id of its process."""
    arguments = [sys.executable, *SERVE, *EAGER, *options, f"{model}={folder(model)}"]
    server = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert server.stdout is not None
        banner = server.stdout.readline()
        assert " at http" in banner, "it did not start"
        yield banner.partition(" at ")[2].split()[0].rstrip(","), server.pid
    finally:
        server.terminate()
        assert server.wait(60) == 0
