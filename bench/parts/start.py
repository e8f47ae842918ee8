"""How soon a server is ready: the first time, when it packs the weights, and when the pack is there.

    python -m bench.parts.start [MODEL] [--starts 7]

The pack lies in a folder of its own, which goes in the end; the model's file is in the system's cache by then, and so is the pack. Printed
are wall-clock seconds from the process's start until it listens (it tells then that it loads), is ready, and has computed one token, and
the processors' seconds until then: of the first start, and of the best and the median of the others. Python keeps its bytecode, as it does
for everybody who does not forbid it: without it each start compiles our sources anew.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.common.command import model_path
from bench.common.proc import PeerError, child, say
from bench.memory.footprint import await_ready, family, first_token

_POLL_S = 0.002


def main() -> None:
    """Measure, and print a line for the first start and two for the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--starts", type=int, default=7, help="after the first")
    args = parser.parse_args()
    path = Path(model_path(args.model))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        os.environ["QUINTET_CACHE"], os.environ["QUINTET_PACK_CACHE"] = folder, "true"
        times = []
        for number in range(1 + args.starts):
            say(f"start {number} of {args.starts}" if number else "the first start")
            times.append(start(path, Path(folder) / "server.log"))
    later = list(zip(*times[1:], strict=True))
    print(f"{path.name}, {path.stat().st_size / 1e6:.0f} MB{'':20}   listens    ready  one token  CPU time")
    for what, row in (("first", times[0]), ("then, best", map(min, later)), ("then, median", map(median, later))):
        print(f"{what:50}" + "".join(f"{value:8.2f} s" for value in row))


def start(path: Path, log: Path) -> tuple[float, float, float, float]:
    """Seconds until it listens, is ready, has computed a token, and those that processors spent on it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "quintet", "serve", str(path), "--port", str(port), "--log-level", "error"]
    begin = time.monotonic()
    with child(command, log, read=False) as process:
        while not listens(port) and process.poll() is None:
            time.sleep(_POLL_S)
        listening = time.monotonic() - begin
        await_ready(port, process.poll, log, _POLL_S)
        ready = time.monotonic() - begin
        first_token(port, path.stem)
        return listening, ready, time.monotonic() - begin, spent(process.pid)


def listens(port: int) -> bool:
    """Whether somebody takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def spent(leader: int) -> float:
    """Seconds that the processors worked for the server's processes."""
    ticks = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in family(leader)]
    return sum(int(one) for pair in ticks for one in pair) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.exit(f"error: {error}")
