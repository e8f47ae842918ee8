"""``python -m tests.backends.native.worker.folder_loads FOLDER``: what loading a folder takes of memory, as JSON: bytes of its packed
weights, and the process's peak above what it had before, whatever is mapped of the files included."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from quintet.backends.native.worker.weights import load_weights


def peak() -> int:
    """Most bytes of memory that this process ever had."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def main(folder: Path) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = peak()
    runner, _ = load_weights(folder, threads=2, context=64, isa="", progress=lambda _: None)
    print(json.dumps({"weights": runner.weight_bytes, "more": peak() - before}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
